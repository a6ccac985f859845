"""Training behind a cosine head: its scale, the unit vectors a loss gets, and what becomes of both in files and stages."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from sklearn.datasets import load_digits

import classgap
from classgap import posthoc
from classgap.checks import InputError
from classgap.heads import CosineHead, FeatureTap, cosine_heads
from classgap.losses import MR2Loss
from classgap.models import build_model
from classgap.suites.jobs import job_key
from classgap.training import TrainConfig, TrainProgress, train
from classgap.training.run import start

SMALL = ["data.per_class=13", "epochs=3", "batch=24", "optim.lr=0.05", "model=mlp-16"]
LONG_TAIL = ["data.profile=exponential", "data.per_class=40", "data.imbalance=8"]
COSINE = "model.head=cosine"
LOWEST = math.log(1 + 99 * math.exp(-2))  # cross-entropy of the best imaginable raw cosines, 100 classes: 2.67


def run(folder: Path, *settings: str, **options: Any) -> Any:
    return train(TrainConfig().override([*SMALL, *settings]), folder, accelerator="cpu", **options)


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(folder / "model.safetensors")


def chosen(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "run.json").read_text())["chosen"]
    return found


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Two digits side by side: 100 classes, 14 samples each."""
    path = tmp_path_factory.mktemp("pairs") / "pairs.npz"
    images, labels = load_digits(return_X_y=True)
    rng = np.random.default_rng(0)
    y = np.repeat(np.arange(100), 14)
    halves = [np.array([rng.choice(np.flatnonzero(labels == digit)) for digit in half]) for half in (y // 10, y % 10)]
    x = np.hstack([images[half] for half in halves]).astype(np.float32) / 16
    late = np.arange(len(y)) % 14 >= 11
    np.savez(path, x_train=x[~late], y_train=y[~late], x_test=x[late], y_test=y[late])
    return str(path)


# --- what is trained ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "settings",
    [
        ["method=cross_entropy"],
        ["method=mr2", "method.p=3"],
        ["method=logit_adjusted", "model.head_scale=20"],
        ["method=ldam", "method.form=delta", "method.coefficient=0.1"],
    ],
    ids=lambda s: "-".join(s),
)
def test_a_hundred_classes_fall_below_what_raw_cosines_allow(tmp_path: Path, pairs: str, settings: list[str]) -> None:
    config = [f"data=npz:{pairs}", "data.per_class=none", "data.val_fraction=0", COSINE, *settings]
    result = run(tmp_path, *config, "model=mlp-64", "epochs=15", "batch=50")
    train = result.history[-1]["train"]
    assert train.get("logit", train["loss"]) < 2 < LOWEST  # the classification term
    assert (result.test.y_pred == result.test.y_true).mean() > 0.5


def test_a_learned_scale_comes_back_from_its_limit(tmp_path: Path) -> None:
    """The large first steps of SGD put it to 1, where a plain clamp would hold it (81 % right instead of 96 %)."""
    result = run(tmp_path, COSINE, "data.per_class=50", "epochs=20", "model=mlp-64", "batch=128", "optim.lr=0.2")
    scales = [record["head_scale"][0] for record in result.history]
    assert min(scales) < 2
    assert max(scales) <= 100.001
    assert scales[-1] > 10
    assert (result.test.y_pred == result.test.y_true).mean() > 0.9


def test_raw_cosines_are_the_scale_of_one(tmp_path: Path, pairs: str) -> None:
    config = [f"data=npz:{pairs}", "data.per_class=none", "data.val_fraction=0", COSINE, "model.head_scale=1"]
    result = run(tmp_path, *config, "model=mlp-64", "epochs=4", "batch=50")
    assert result.history[-1]["train"]["loss"] > LOWEST
    assert np.abs(result.test.scores).max() <= 1 + 1e-6


@pytest.mark.parametrize(
    "settings",
    [
        ["method=dbm"],
        ["method=cosface"],
        ["method=drw", "method.base=ldam"],
        ["method=ncl", "method.base=dbm", "method.experts=2"],
        ["method=bcl", "method.base=dbm"],
        ["method=gml"],
    ],
    ids=lambda s: "-".join(s),
)
def test_losses_with_a_scale_of_their_own_get_raw_cosines(tmp_path: Path, settings: list[str]) -> None:
    trainer = start(TrainConfig().override([*SMALL, *settings]), tmp_path / "run", accelerator="cpu")
    assert all(head.scale is None for head in cosine_heads(trainer.model))
    logits = trainer.model(trainer.normalise(trainer.data.train.x[:50]))[0]
    assert logits.abs().max() <= 1 + 1e-6
    assert chosen(tmp_path / "run")["head_scale"] == "that of the loss"
    with pytest.raises(InputError, match="scale of its own"):
        run(tmp_path / "twice", *settings, "model.head_scale=30")
    assert not (tmp_path / "twice").exists()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (["model.head_scale=30"], "the head is linear; set model.head=cosine"),
        (["model.head=linear", "model.head_scale=learned"], "the head is linear"),
        ([COSINE, "model.head_scale=lerned"], "must be learned or a number, got 'lerned'"),
        ([COSINE, "model.head_scale=0"], r"model.head_scale .* in \(0, inf\), got 0"),
        ([COSINE, "model.head_scale=-3"], "model.head_scale"),
        ([COSINE, "method=dro_lt", "stage=three_stage"], "cannot hand it to a cosine head"),
    ],
)
def test_settings_that_make_no_sense_cost_nothing(tmp_path: Path, settings: list[str], message: str) -> None:
    with pytest.raises(InputError, match=message):
        run(tmp_path / "run", *settings)
    assert not (tmp_path / "run").exists()


def test_a_learned_scale_is_not_decayed_and_a_fixed_one_stays(tmp_path: Path) -> None:
    trainer = start(TrainConfig().override([*SMALL, COSINE, "optim.weight_decay=0.5"]), tmp_path, accelerator="cpu")
    scale = trainer.model.head.logit_scale
    assert float(scale.detach().exp()) == pytest.approx(1 / 0.07)
    decays = {id(p): group["weight_decay"] for group in trainer.optimizer.param_groups for p in group["params"]}
    assert decays[id(scale)] == 0
    assert len(decays) == sum(1 for _ in trainer.model.parameters())
    assert all(decay == 0.5 for key, decay in decays.items() if key != id(scale))
    trainer.run()
    assert float(scale.detach()) != pytest.approx(math.log(1 / 0.07))
    run(tmp_path / "fixed", COSINE, "model.head_scale=16")
    assert weights(tmp_path / "fixed")["3.fixed_scale"] == 16


def test_the_scale_is_seen_in_log_run_and_progress(tmp_path: Path) -> None:
    notes: list[str] = []
    result = run(tmp_path, COSINE, watch=lambda p: notes.append(p.note))
    assert "head: cosine, with a learned scale (model.head_scale)" in notes
    assert chosen(tmp_path)["head"] == "cosine"
    assert chosen(tmp_path)["head_scale"] == "learned"
    last = float(weights(tmp_path)["3.logit_scale"].exp())
    assert result.history[-1]["head_scale"] == [pytest.approx(last, rel=1e-6)]
    run(tmp_path / "linear")
    assert chosen(tmp_path / "linear")["head"] == "linear"
    assert "head_scale" not in chosen(tmp_path / "linear")


def test_configurations_keep_their_names() -> None:
    """Keys of results that are committed must not change; what means something else must not share one."""
    plain = TrainConfig().override(["method=mr2"])
    assert "head_scale" not in plain.to_dict()["model"]
    cosine, learned, fixed = (
        plain.override([COSINE, *more]) for more in ([], ["model.head_scale=learned"], ["model.head_scale=16"])
    )
    assert TrainConfig.from_dict(json.loads(json.dumps(fixed.to_dict()))) == fixed
    assert job_key(cosine) == job_key(learned)
    assert len({job_key(config) for config in (plain, cosine, fixed)}) == 3
    assert job_key(fixed) == job_key(plain.override([COSINE, "model.head_scale=16.0"]))
    assert cosine.slug != fixed.slug
    dbm = TrainConfig().override(["method=dbm"])
    assert job_key(dbm) == job_key(dbm.override([COSINE]))


# --- resuming and files -----------------------------------------------------------------------------------------------


class Killed(Exception):
    pass


@pytest.mark.parametrize(
    "settings", [["method=mr2", "method.p=3"], ["wrapper=sam"], ["method=ncl", "method.experts=2"]]
)
@pytest.mark.parametrize("stop", [2, 8])
def test_a_run_cut_off_continues_bit_for_bit(tmp_path: Path, settings: list[str], stop: int) -> None:
    config = [COSINE, "checkpoint_steps=2", "model=resnet20", "data.per_class=4", "batch=10", *settings]

    def cut(position: TrainProgress) -> None:
        if position.step == stop and not position.note:
            raise Killed

    with pytest.raises(Killed):
        run(tmp_path / "cut", *config, watch=cut)
    resumed, whole = run(tmp_path / "cut", *config, resume=True), run(tmp_path / "whole", *config)
    one, two = weights(tmp_path / "cut"), weights(tmp_path / "whole")
    assert [key for key in one if key.endswith("logit_scale")]
    assert one.keys() == two.keys()
    assert all(torch.equal(one[key], two[key]) for key in one)
    assert np.array_equal(resumed.test.scores, whole.test.scores)
    for mine, theirs in zip(resumed.history, whole.history, strict=True):
        assert {**mine, "seconds": 0} == {**theirs, "seconds": 0}


@pytest.mark.parametrize("settings", [[COSINE], [COSINE, "model.head_scale=16"], ["method=dbm"], ["method=gml"]])
def test_predictions_are_scaled_logits_of_a_linear_layer_on_unit_vectors(tmp_path: Path, settings: list[str]) -> None:
    result = run(tmp_path, *settings)
    np.testing.assert_allclose(np.linalg.norm(result.test.features, axis=1), 1, rtol=1e-5)
    np.testing.assert_allclose(result.test.features @ result.test.weight.T, result.test.scores, rtol=1e-4, atol=1e-4)
    assert np.ptp(np.linalg.norm(result.test.weight, axis=1)) < 1e-3
    assert np.abs(result.test.scores).max() > 1.5  # not cosines
    assert result.test.bias is None
    # the saved network gives the same scores
    scale = {"model.head_scale=16": 16.0}.get(settings[-1], "learned" if settings == [COSINE] else None)
    network = build_model("mlp-16", 10, (1, 8, 8), "cosine", head_scale=scale).eval()
    network.load_state_dict(weights(tmp_path))
    data = start(TrainConfig().override([*SMALL, "seed=7"]), tmp_path / "other", accelerator="cpu")
    with torch.no_grad():
        scores = network(data.normalise(data.data.test.x)).numpy()
    own = {"method=dbm": 32.0, "method=gml": 30.0}.get(settings[-1], 1.0)
    np.testing.assert_allclose(own * scores, result.test.scores, rtol=1e-4, atol=1e-4)
    report = classgap.audit(
        result.test.y_true, scores=result.test.scores, features=result.test.features, head=result.test.weight
    )
    assert report.calibration is not None


def test_a_teacher_with_a_scale_of_its_own_is_not_scaled_again(tmp_path: Path) -> None:
    run(tmp_path / "teacher", COSINE)
    run(tmp_path / "student", "method=gml", f"teacher={tmp_path / 'teacher'}")
    scaled, raw = (FeatureTap(build_model("mlp-16", 10, (1, 8, 8), "cosine", head_scale=s)) for s in (30, None))
    raw.head.weight.data = scaled.head.weight.data
    from classgap.losses import GMLLoss

    criterion = GMLLoss(10, 16, class_counts=[5.0] * 10, scale=30.0)
    features, logits = torch.randn(4, 16), torch.rand(4, 10)
    losses = []
    for teacher in (scaled, raw):
        criterion.bind_teacher(teacher)
        losses.append(criterion._distillation(logits, teacher.head(features)))
    torch.testing.assert_close(*losses)


# --- the representation is the unit vector ----------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_norm_2_of_unit_vectors_gives_every_class_the_same_margin(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    tap = FeatureTap(build_model("mlp-16", 5, (8,), "cosine", head_scale="learned").to(dtype))
    inputs, target = torch.randn(60, 8, dtype=dtype), torch.arange(60) % 5
    inputs *= 1 + target[:, None]  # classes of different size and spread
    margins = {}
    for p in (2.0, 3.0):
        criterion = MR2Loss(5, c_bar=2.0, p=p).to(dtype)
        for rows in torch.arange(60).split(20):
            logits, features = tap(inputs[rows])
            criterion(logits, target[rows], features=features).backward()
        margins[p] = criterion.gamma
    torch.testing.assert_close(margins[2.0], torch.full((5,), 2.0, dtype=margins[2.0].dtype), rtol=1e-6, atol=0)
    assert (margins[3.0] - 2).abs().max() > 0.01
    assert margins[3.0].mean() == pytest.approx(2.0)


def test_the_trainer_hands_unit_vectors_to_losses_but_not_to_projections(tmp_path: Path) -> None:
    lengths = {}
    for name in ("mr2", "center", "elm", "supcon", "bcl"):
        trainer = start(TrainConfig().override([*SMALL, COSINE, f"method={name}"]), tmp_path / name, accelerator="cpu")
        lengths[name] = trainer.model(trainer.normalise(trainer.data.train.x[:40]))[1].norm(dim=1)
    ones = torch.ones(40)
    for name in ("mr2", "center", "elm"):
        torch.testing.assert_close(lengths[name], ones)
    assert all((lengths[name] - 1).abs().min() > 0.01 for name in ("supcon", "bcl"))


# --- stages and corrections -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("settings", [[COSINE], ["method=dbm"]], ids=lambda s: s[0])
@pytest.mark.parametrize("stage", ["crt", "lws", "marc", "gap_dial"])
def test_a_correction_is_a_linear_layer_on_unit_vectors_and_no_cosine_head(
    tmp_path: Path, stage: str, settings: list[str]
) -> None:
    result = run(tmp_path, f"stage={stage}", *settings, *LONG_TAIL)
    test = result.test
    np.testing.assert_allclose(test.features @ test.weight.T + test.bias, test.scores, rtol=1e-3, atol=1e-3)
    first, final = weights(tmp_path / "stage1"), weights(tmp_path)
    assert first.keys() == final.keys()  # the network as it was; the correction lies beside it
    assert all(torch.equal(first[key], final[key]) for key in first)
    with np.load(tmp_path / "stage1" / "predictions_test.npz") as before:
        corrected = posthoc.load(tmp_path).transform(before["scores"], features=before["features"])
    np.testing.assert_allclose(corrected, test.scores, rtol=1e-4, atol=1e-4)


def test_a_stage_and_fix_see_the_same_layer(tmp_path: Path) -> None:
    """Norms of the rows are the scale: what MARC calls a margin is then the cosine."""
    marc = ("stage=marc", "stage.ridge=0.1", "stage.steps=none", "stage.normalize=batch")
    run(tmp_path, *marc, COSINE, "data.val_fraction=0", *LONG_TAIL)
    trainer: Any = start(TrainConfig().override([*SMALL, *marc, COSINE, "data.val_fraction=0", *LONG_TAIL]),
                         tmp_path, accelerator="cpu", resume=True)  # fmt: skip
    scores, _, y = trainer._training_outputs(1)
    with np.load(tmp_path / "stage1" / "predictions_test.npz") as file:
        norms = np.linalg.norm(file["weight"], axis=1)
    again = posthoc.MARC(gamma=1.2, ridge=0.1).fit(
        scores.numpy(), y.numpy(), class_counts=trainer.data.class_counts.numpy(), weight_norms=norms
    )
    stored = posthoc.load(tmp_path)
    np.testing.assert_allclose(again.offset_, stored.offset_, rtol=1e-3, atol=1e-4)
    np.testing.assert_allclose(norms, float(weights(tmp_path)["3.logit_scale"].exp()), rtol=1e-5)


def test_fix_folds_a_cosine_head(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from classgap.cli import main

    run(tmp_path / "run", COSINE, "data.profile=exponential", "data.per_class=60", "data.imbalance=30", "epochs=5")
    file = tmp_path / "run" / "predictions_test.npz"
    arguments = ["classgap", "fix", str(file), "--out", str(tmp_path / "fixed"), "--folds", "2"]
    monkeypatch.setattr("sys.argv", arguments)
    with pytest.raises(SystemExit) as done:
        main()
    assert not done.value.code
    assert "tau_norm (all rows of the head have the same norm" in (tmp_path / "fixed" / "methods.md").read_text()
    head = load_file(tmp_path / "fixed" / "head.safetensors")
    method = posthoc.load(tmp_path / "fixed" / "method")
    with np.load(file) as saved:
        served = saved["features"] @ head["weight"].numpy().T + head["bias"].numpy()
        corrected = method.transform(saved["scores"], features=saved["features"])
    np.testing.assert_allclose(served, corrected, rtol=1e-3, atol=1e-3)


def test_a_cosine_head_itself_is_refused_with_the_way_out() -> None:
    rng = np.random.default_rng(0)
    head, features, y = CosineHead(6, 3, scale=10), rng.normal(size=(30, 6)).astype(np.float32), np.arange(30) % 3
    unit = head.unit(torch.from_numpy(features)).numpy()
    scores = head(torch.from_numpy(features)).detach().numpy()
    method = posthoc.MARC().fit(scores, y)
    with pytest.raises(InputError, match=r"got CosineHead.*fold into head\.as_linear\(\)"):
        method.fold(head)
    with pytest.raises(InputError, match=r"got CosineHead.*pass head\.as_linear\(\)"):
        classgap.audit(y, scores=scores, features=features, head=head)
    weight, bias = method.fold(head.as_linear())
    np.testing.assert_allclose(unit @ weight.T + bias, method.transform(scores), rtol=1e-4, atol=1e-5)


def test_a_probe_after_a_cosine_head_is_linear(tmp_path: Path) -> None:
    result = run(tmp_path, COSINE, "stage=linear_probe", "stage.epochs=1")
    first, final = weights(tmp_path / "stage1"), weights(tmp_path)
    assert "3.logit_scale" in first
    assert {"3.weight", "3.bias"} < final.keys()
    assert "3.logit_scale" not in final
    assert torch.equal(first["1.weight"], final["1.weight"])
    assert np.ptp(np.linalg.norm(result.test.features, axis=1)) > 0.1
