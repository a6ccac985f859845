"""Every verb of the command line with generated files and options: a right answer, or one sentence and exit code 2.

Code 1 is for failed gates alone. A call that was refused has written nothing, and no call leaves temporary files.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import typer
from hypothesis import given, settings
from hypothesis import strategies as st

from classgap.cli.app import app
from command_line import Done, call
from malformed import REFUSED, build

TORCH = find_spec("torch") is not None
Y = np.arange(40) % 3
RNG = np.random.default_rng(0)
FEATURES, WEIGHT = RNG.normal(size=(40, 4)), RNG.normal(size=(3, 4))
SCORES = 2 * np.eye(3)[Y] + FEATURES @ WEIGHT.T
NAMES = np.array(["cat", "dog", "ape"])

# ---------------------------------------------------------------- what is typed

texts = st.one_of(
    st.text(max_size=6),
    st.sampled_from(
        ["a", "-", "--", ".", "..", "/", "~", "\udc80", "\x1b[31m", "9" * 5000, "[bold]", "a=b", "%s{}", "x" * 300]
    ),
)
whole_numbers = st.one_of(
    st.integers(-2, 12).map(str),
    st.sampled_from(["99999999999999999999", "9" * 5000, "1.5", "nan", "x", "1e3", "0x1"]),
)
fractions = st.one_of(
    st.floats(0, 1).map(str), st.sampled_from(["-1", "0", "1", "1.5", "nan", "inf", "-inf", "1e999", "x", "50%"])
)
files = st.one_of(
    st.sampled_from(["p.csv", "s.csv", "f.npz", "t.parquet", "one.csv", "w.csv", "folder", "p*.csv"]),
    st.sampled_from(
        ["none.csv", "bad.npz", "bad.csv", "bad.safetensors", "a.npz", "text.txt", "run", "features.safetensors"]
    ),
    texts,
)
columns = st.one_of(
    st.sampled_from(
        ["y_true", "y_pred", "score_", "score_0,score_1,score_2", "scores", "site", "id", "weight", "n", "nothing"]
    ),
    texts,
)
conditions = st.one_of(
    st.builds(
        "{} {} {}".format,
        st.sampled_from(
            ["hard", "worst.low", "gap", "class[cat]", "class[0].accuracy", "verdict", "slices.worst", "x.y"]
        ),
        st.sampled_from(["<", ">", "==", "!=", "~"]),
        st.sampled_from(["0.5", "50%", "1.5", "-1", "nan", "worse", "0"]),
    ),
    st.sampled_from(["any class worsened", "any slice worse"]),
    texts,
)
settings_ = st.one_of(
    st.builds(
        "{}={}".format,
        st.sampled_from(
            ["method", "method.lam", "method.self", "epochs", "batch", "optim.lr", "seed", "data", "data.per_class", "model",
             "stage", "stage.base", "wrapper", "sampler", "mix", "precision", "data.augment", "teacher", "schedule.milestones",
             "data.val_fraction", "optim.betas", "model.pretrained", "data.size", "nothing", ""]
        ),
        st.one_of(
            st.sampled_from(["mr2", "ncl", "drw", "elm", "gap_dial", "crt", "sam", "none", "0", "-1", "2.5", "nan", "true",
                             "digits", "a.npz", "features.safetensors", "t.csv", "mlp-4", "linear", "[1", "{}", "9" * 5000]),
            texts,
        ),
    ),
    texts,
)  # fmt: skip

# Values of options by name; what is not listed gets any text. Names of verbs make an option special to them.
VALUES: dict[str, st.SearchStrategy[str]] = {
    **dict.fromkeys(["--true", "--pred", "--scores", "--features", "--id", "--by", "--sample-weight", "--count"], columns),
    **dict.fromkeys(["--path", "--text"], columns),
    **dict.fromkeys(["--names", "--train-counts", "--cost", "--reference", "--plugin", "--root"],
                    st.one_of(files, st.sampled_from(["names.txt", "names.json", "counts.csv", "counts.json", "cost.csv"]))),
    **dict.fromkeys(["--seed", "--folds", "--nodes", "--trials", "--threads", "--memory"], whole_numbers),
    **dict.fromkeys(["--confidence", "--threshold", "--report-share", "--mislabelled-below", "--slack"], fractions),
    "--workers": st.sampled_from(["-1", "0", "x", "99999999999999999999999"]),
    "--fail-if": conditions,
    "--rule": st.one_of(st.sampled_from(["hard_if_overall_holds", "best_hard", "last", "val_hard"]), texts),
    "--overall": st.one_of(st.sampled_from(["balanced", "accuracy"]), texts),
    "--set": settings_,
    "--space": st.one_of(st.sampled_from(["optim.lr=0.01:0.1", "optim.lr=nan:1", "method.lam=" + "9" * 5000]), texts),
    "--grid": st.one_of(st.sampled_from(["lr=0.1,1", "seed=0,1", "lr=nan", "tau=1", "lr=" + "9" * 5000, "seed=-1", "lr"]), texts),
    "--devices": st.sampled_from(["0", "-2", "x", "1", "1.5", "99999999999999999999"]),
    "--accelerator": st.sampled_from(["cpu", "cuda", "x"]),
    "--strategy": st.sampled_from(["auto", "x"]),
    "--precision": st.sampled_from(["32-true", "64-true", "x"]),
    "--device": st.one_of(st.sampled_from(["cpu", "cuda", "cpu:0"]), texts),
    "--dtype": st.one_of(st.sampled_from(["float32", "bf16", "float64"]), texts),
    "--part": st.one_of(st.sampled_from(["train", "test", "val", "all"]), texts),
    "--format": st.one_of(st.sampled_from(["md", "tex", "html"]), texts),
    "--seeds": st.one_of(st.sampled_from(["0:2", "0:99999999999999", "1,1", "-1", "3:1"]), texts),
    "--only": texts,
    "--results": st.one_of(files, st.just("new.jsonl")),
    "--out": st.one_of(st.sampled_from(["out", "out/below", "p.csv", "p.csv/x", "x.npz", "x.csv", "x.safetensors", "x.onnx",
                                        "new.py", "folder", "x" * 300]), texts),
}  # fmt: skip
names = st.one_of(st.sampled_from(["digits", "cifar10", "mr2", "smoke", "cross_entropy", "my_loss", "class"]), texts)
SMALL = ["--set", "epochs=1", "--set", "data.per_class=4", "--set", "model=mlp-4", "--set", "batch=16"]
POSITIONALS: dict[str, list[st.SearchStrategy[str]]] = {
    "audit": [files], "compare": [files, files], "fix": [files], "train": [], "tune": [], "demo": [],
    "predict": [st.one_of(st.just("run"), files), st.one_of(files, names)],
    "features": [st.one_of(st.sampled_from(["run", "mlp-4", "linear"]), texts), st.one_of(st.just("digits"), files)],
    "probe": [st.one_of(st.sampled_from(["features.safetensors", "a.npz"]), files)],
    "export": [st.one_of(st.sampled_from(["run", "folder"]), texts)],
    "bench": [st.one_of(names, st.sampled_from(["suite.py", "broken.py", "p.csv"]))],
    "learning-curve": [files, files],
    "data list": [], "data prepare": [texts.filter(lambda text: text not in (".", "..", "/"))], "methods": [names],
    "new-method": [names],
}  # fmt: skip
# Words that every call of a verb has, so that it ends soon; options that would start processes or hours of work are left out.
ALWAYS = {"train": SMALL, "tune": [*SMALL, "--trials", "1"], "probe": ["--set", "epochs=1"], "bench": ["--list"],
          "demo": ["--out", "p.csv"]}  # fmt: skip
LEFT_OUT = {
    "--help",
    "--version",
    "--install-completion",
    "--show-completion",
    "--trials",
    "--train",
    "--resume",
    "--quick",
}
# Verbs that need torch, and how many calls each has: those that train, trace or start libraries cost a second.
WITH_TORCH = (
    "train",
    "tune",
    "predict",
    "features",
    "probe",
    "export",
    "bench",
    "demo",
    "data list",
    "data prepare",
    "new-method",
)
FEW = {"audit": 30, "compare": 10, "fix": 3, "train": 6, "predict": 6, "features": 4, "probe": 4, "methods": 5}
MANY = {
    "audit": 2500,
    "compare": 1200,
    "fix": 300,
    "train": 600,
    "predict": 600,
    "features": 300,
    "probe": 300,
    "methods": 300,
}


def commands() -> dict[str, Any]:
    """The verbs of the application, by what is typed."""
    found: dict[str, Any] = {}
    for name, command in typer.main.get_command(app).commands.items():  # type: ignore[attr-defined]
        inner = getattr(command, "commands", None)
        found |= {name: command} if inner is None else {f"{name} {part}": sub for part, sub in inner.items()}
    return found


VERBS = commands()


@st.composite
def typed(draw: st.DrawFn, verb: str) -> list[str]:
    """The words of a call."""
    options = [p for p in VERBS[verb].params if p.opts[0].startswith("-") and not LEFT_OUT & set(p.opts)]
    words = [*verb.split(" "), *(draw(strategy) for strategy in POSITIONALS[verb]), *ALWAYS.get(verb, [])]
    for option in draw(st.lists(st.sampled_from(options), max_size=4, unique_by=lambda p: p.name)) if options else ():
        flag = getattr(option, "is_flag", False)
        words += [option.opts[-1]] if flag else [option.opts[-1], draw(VALUES.get(option.opts[-1], texts))]
    return words


# ---------------------------------------------------------------- what there is


def write_inputs(folder: Path) -> None:
    """Good and bad files of all kinds."""
    rows = [
        f"{NAMES[a]},{NAMES[b]},{i % 2},{i},{1 + i % 3}"
        for i, (a, b) in enumerate(zip(Y, SCORES.argmax(1), strict=True))
    ]
    (folder / "p.csv").write_text("y_true,y_pred,site,id,weight\n" + "\n".join(rows) + "\n")
    lines = [f"{a}," + ",".join(map(str, row)) for a, row in zip(Y, SCORES, strict=True)]
    (folder / "s.csv").write_text("y_true,score_0,score_1,score_2\n" + "\n".join(lines) + "\n")
    np.savez(
        folder / "f.npz", y_true=Y, scores=SCORES, features=FEATURES, weight=WEIGHT, train_counts=np.array([9, 5, 2])
    )
    pl.DataFrame({"y_true": NAMES[Y], "scores": SCORES.tolist()}).write_parquet(folder / "t.parquet")
    (folder / "one.csv").write_text("y_true,y_pred\na,a\n")
    (folder / "w.csv").write_text("y_true,y_pred,n\na,a,3\nb,a,2\nb,b,7\n")
    (folder / "folder").mkdir()
    shutil.copy(folder / "p.csv", folder / "folder" / "p.csv")
    for name in ("no archive.npz", "row too short.csv", "header size.safetensors"):
        build(folder, f"bad{Path(name).suffix}", REFUSED[name])
    np.savez(folder / "a.npz", x_train=FEATURES, y_train=Y, x_test=FEATURES, y_test=Y)
    (folder / "text.txt").write_text("some words\n")
    (folder / "names.txt").write_text("cat\ndog\nape\n")
    (folder / "names.json").write_text('["a", "b", "c"]')
    (folder / "counts.csv").write_text("class,count\ncat,5\ndog,6\nape,7\n")
    (folder / "counts.json").write_text("[5, 6, 7]")
    (folder / "cost.csv").write_text("true,cat,dog,ape\ncat,0,1,2\ndog,1,0,1\nape,3,1,0\n")
    (folder / "broken.py").write_text("def suite():\n    return 1 / 0\n")
    (folder / "suite.py").write_text("from bench_suite import tiny\nsuite = tiny\n")


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("inputs")
    write_inputs(folder)
    if TORCH:
        from classgap.training import TrainConfig, train

        train(TrainConfig().override(SMALL[1::2]), folder / "run", accelerator="cpu")
        done = call(
            "features", "run", "digits", "--set", "data.per_class=4", "--out", "features.safetensors", folder=folder
        )
        assert done.code == 0, done.err
    return folder


def snapshot(folder: Path) -> dict[str, tuple[int, int]]:
    """Files with size and time of change."""
    found = {}
    for path in folder.rglob("*"):
        if path.is_file() and path.suffix != ".lock" and path.name != ".lock":
            state = path.stat()
            found[str(path.relative_to(folder))] = state.st_size, state.st_mtime_ns
    return found


def restore(folder: Path, inputs: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(inputs, folder, symlinks=True)


def check(words: list[str], folder: Path) -> Done:
    """Call the command line and check what every call promises."""
    before = snapshot(folder)
    done = call(*words, folder=folder)
    assert done.code in (0, 1, 2), (words, done)
    assert done.code != 1 or "--fail-if" in words, (words, done)
    after = snapshot(folder)
    left = [name for name in after if ".classgap-" in name or name.endswith(".tmp")]
    assert not left, (words, left)
    for text in (done.out, done.err):
        assert "Traceback" not in text, (words, text)
        assert "\x1b" not in text, (words, text)
    if done.code == 2:
        assert done.sentence, words
        changed = {name for name in {**before, **after} if before.get(name) != after.get(name)}
        assert not changed, (words, done.err, changed)
    return done


# ---------------------------------------------------------------- the properties


def test_every_verb_is_covered() -> None:
    assert set(POSITIONALS) == set(VERBS)


def run_verb(verb: str, examples: int, inputs: Path, folder: Path) -> None:
    restore(folder, inputs)
    fresh = snapshot(folder)

    def body(words: list[str]) -> None:
        if snapshot(folder) != fresh:
            restore(folder, inputs)
            fresh.clear()
            fresh.update(snapshot(folder))
        check(words, folder)

    settings(max_examples=examples)(given(typed(verb))(body))()


def marked(verb: str) -> Any:
    return pytest.param(verb, marks=pytest.mark.skipif(verb in WITH_TORCH and not TORCH, reason="needs torch"))


@pytest.mark.filterwarnings("ignore")  # of libraries about odd values; users see them on standard error
@pytest.mark.parametrize("verb", [marked(verb) for verb in POSITIONALS])
def test_any_call_ends_with_an_answer_or_a_sentence(verb: str, inputs: Path, tmp_path: Path) -> None:
    run_verb(verb, FEW.get(verb, 3), inputs, tmp_path / "here")


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("verb", [marked(verb) for verb in POSITIONALS])
def test_many_calls_end_with_an_answer_or_a_sentence(verb: str, inputs: Path, tmp_path: Path) -> None:
    run_verb(verb, MANY.get(verb, 150), inputs, tmp_path / "here")


# ---------------------------------------------------------------- answers against what was written

label_sets = st.one_of(
    st.just(["0", "1", "2"]),
    st.just(["2", "0", "1"]),
    st.just(["cat", "dog"]),
    st.lists(
        st.text(st.characters(blacklist_categories=("Cs", "Cc")), min_size=1, max_size=5).filter(lambda t: t == t.strip()),
        min_size=2, max_size=4, unique=True,
    ),
    st.lists(st.integers(-5, 10**6).map(str), min_size=2, max_size=4, unique=True),
    st.lists(st.sampled_from(["=a", "'", '"', "a,b", "nan", "null", "None", "1.0", "01", "é", "1e3", "-0", "True", "#", "a;b"]),
             min_size=2, max_size=4, unique=True),
)  # fmt: skip


@st.composite
def labelled(draw: st.DrawFn) -> tuple[list[str], list[str], list[str], str]:
    """True labels, two predictions, and the format of the file."""
    classes = draw(label_sets)
    length = draw(st.integers(2, 12))
    some = st.lists(st.sampled_from(classes), min_size=length, max_size=length)
    return draw(some), draw(some), draw(some), draw(st.sampled_from(["csv", "tsv", "parquet", "npz", "safetensors"]))


def write_labels(path: Path, columns: dict[str, list[str]]) -> None:
    """Labels as text, or as numbers where the format has no text."""
    if path.suffix in (".csv", ".tsv"):
        pl.DataFrame(columns).write_csv(
            path, separator="," if path.suffix == ".csv" else "\t", quote_style="non_numeric"
        )
    elif path.suffix == ".parquet":
        pl.DataFrame(columns).write_parquet(path)
    elif path.suffix == ".npz":
        np.savez(path, **{name: np.array(values) for name, values in columns.items()})
    else:
        import safetensors.numpy

        known = sorted({label for values in columns.values() for label in values})
        arrays = {name: np.array([known.index(label) for label in values]) for name, values in columns.items()}
        safetensors.numpy.save_file(arrays, path)


def accuracy(y_true: list[str], y_pred: list[str]) -> float:
    return sum(a == b for a, b in zip(y_true, y_pred, strict=True)) / len(y_true)


def check_answer(example: tuple[list[str], list[str], list[str], str], folder: Path) -> None:
    """The accuracies that audit and compare print are those of the labels."""
    y_true, first, second, ending = example
    paths = [folder / f"{name}.{ending}" for name in ("one", "two")]
    for path, y_pred in zip(paths, (first, second), strict=True):
        write_labels(path, {"y_true": y_true, "y_pred": y_pred})
    done = call("audit", paths[0], "--json")
    if done.code == 0:
        assert json.loads(done.out)["metrics"]["overall"]["value"] == pytest.approx(accuracy(y_true, first)), example
    else:
        assert done.sentence
    done = call("compare", *paths, "--json")
    if done.code == 0:
        found = json.loads(done.out)["metrics"]["overall"]
        assert found["before"]["value"] == pytest.approx(accuracy(y_true, first)), example
        assert found["after"]["value"] == pytest.approx(accuracy(y_true, second)), example
    else:
        assert done.sentence


@st.composite
def scored(draw: st.DrawFn) -> tuple[list[int], np.ndarray, str, list[str] | None, str]:
    """Labels, scores, class names or None, the type of the scores, and the format of the file."""
    classes, length = draw(st.integers(2, 4)), draw(st.integers(2, 10))
    y = draw(st.lists(st.integers(0, classes - 1), min_size=length, max_size=length))
    values = draw(st.lists(st.integers(-9, 9), min_size=length * classes, max_size=length * classes))
    kind = draw(st.sampled_from(["<f8", "<f4", "<f2", "i1", "<i8"]))
    given_names = draw(
        st.one_of(st.none(), st.permutations([str(k) for k in range(classes)]), st.just(list("wxyz")[:classes]))
    )
    ending = draw(st.sampled_from(["csv", "parquet", "npz", "safetensors"]))
    return y, np.array(values).reshape(length, classes), kind, given_names, ending


def check_scores(example: tuple[list[int], np.ndarray, str, list[str] | None, str], folder: Path) -> None:
    """The accuracy is that of the highest score, whatever the names, the types and the format."""
    y, scores, kind, given_names, ending = example
    path, matrix = folder / f"s.{ending}", scores.astype(kind)
    if ending in ("npz", "safetensors"):
        import safetensors.numpy

        arrays = {"y_true": np.array(y), "logits": matrix}
        np.savez(path, **arrays) if ending == "npz" else safetensors.numpy.save_file(arrays, path)
    else:
        frame = pl.DataFrame(
            {"y_true": y, **{f"logit_{k}": matrix[:, k].astype(float) for k in range(matrix.shape[1])}}
        )
        frame.write_csv(path) if ending == "csv" else frame.write_parquet(path)
    more: list[str] = []
    if given_names is not None:
        (folder / "names.txt").write_text("\n".join(given_names) + "\n")
        more = ["--names", str(folder / "names.txt")]
    done = call("audit", path, *more, "--json")
    if done.code == 0:
        wanted = float((scores.argmax(1) == np.array(y)).mean())
        assert json.loads(done.out)["metrics"]["overall"]["value"] == pytest.approx(wanted), example
    else:
        assert done.sentence


ANSWERS: dict[str, tuple[st.SearchStrategy[Any], Callable[[Any, Path], None]]] = {
    "labels": (labelled(), check_answer),
    "scores": (scored(), check_scores),
}


def run_answers(name: str, examples: int, folder: Path) -> None:
    strategy, checked = ANSWERS[name]

    def body(example: Any) -> None:
        checked(example, folder)

    settings(max_examples=examples)(given(strategy)(body))()


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", ANSWERS)
def test_printed_accuracies_are_those_of_the_file(name: str, tmp_path: Path) -> None:
    run_answers(name, 60, tmp_path)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", ANSWERS)
def test_many_printed_accuracies_are_those_of_the_file(name: str, tmp_path: Path) -> None:
    run_answers(name, 1500, tmp_path)
