"""A finished run as one ONNX file: pre-processing of pixels, network and correction in one graph, from samples to scores."""

from __future__ import annotations

import json
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import classgap
from classgap.checks import InputError
from classgap.data import mean_over_views
from classgap.models.built import quiet
from classgap.posthoc import DisAlign
from classgap.training.outputs import scores_and_features
from classgap.training.predictor import Predictor, load_run
from classgap.writing import replacing

_TOLERANCE = 1e-3  # of a score, relative to the largest one; graphs are optimised
_ROWS = 3


@dataclass(frozen=True)
class Exported:
    """An exported network; ``difference`` is the largest one of a score under onnxruntime, ``None`` if that is not installed."""

    path: Path
    about: dict[str, Any]
    difference: float | None


class ScoringNetwork(nn.Module):
    """From samples as they are read (uint8 images, vectors, token numbers) to the scores of the classes."""

    shift: Tensor
    scale: Tensor

    def __init__(self, run: Predictor) -> None:
        super().__init__()
        self.network, self.criterion, self.kind = run.model, run.criterion, run.head
        self.standardises = len(run.expected.in_shape) == 3 and run.expected.standardised
        self.register_buffer("shift", run.normalise.shift)
        self.register_buffer("scale", run.normalise.scale)
        self.correction = None if run.pending is None else _correction(run)
        self.views = run.config.predict.augment

    def forward(self, samples: Tensor) -> Tensor:
        """Scores (N, K)."""
        found = mean_over_views(self._once, samples, self.views) if self.views else self._once(samples)
        scores, features = found
        return scores if self.correction is None else self.correction(scores, features)

    def _once(self, samples: Tensor) -> tuple[Tensor, Tensor]:
        inputs = (samples.float() - self.shift) / self.scale if self.standardises else samples
        logits, features = self.network(inputs)
        return scores_and_features(self.criterion, self.kind, logits, features)


class _Folded(nn.Module):
    weight: Tensor
    bias: Tensor

    def __init__(self, weight: Any, bias: Any) -> None:
        super().__init__()
        self.register_buffer("weight", torch.from_numpy(weight))
        self.register_buffer("bias", torch.from_numpy(bias))

    def forward(self, scores: Tensor, features: Tensor) -> Tensor:
        return nn.functional.linear(features, self.weight, self.bias)


class _Aligned(nn.Module):
    """What :class:`classgap.posthoc.DisAlign` computes."""

    slope: Tensor
    offset: Tensor
    confidence: Tensor

    def __init__(self, method: DisAlign) -> None:
        super().__init__()
        slope = method.alpha_ - (1.0 if method.form == "paper" else 0.0)
        for name, array in (("slope", slope), ("offset", method.beta_), ("confidence", method.confidence_)):
            self.register_buffer(name, torch.from_numpy(np.asarray(array, dtype=np.float32)))

    def forward(self, scores: Tensor, features: Tensor) -> Tensor:
        sigma = torch.sigmoid(features @ self.confidence[:-1] + self.confidence[-1])[:, None]
        return scores + sigma * (self.slope * scores + self.offset)


def _correction(run: Predictor) -> nn.Module:
    """The correction that the weights do not have."""
    method = run.pending
    if isinstance(method, DisAlign):
        return _Aligned(method)
    weight, bias = run.last_layer()
    if weight is None or bias is None:
        raise InputError(f"the correction {type(method).__name__} of this run cannot be written as a graph")
    return _Folded(weight, bias)


def export(run: str | Path | Predictor, out: str | Path) -> Exported:
    """Write the network of a finished run, with the correction of its stages, as an ONNX file from samples to scores.

    The input is a batch of any size: ``images`` (N, C, H, W) of uint8, already resized (of float32 for
    a network trained on floating point images), ``vectors`` (N, d) of float32, or
    ``tokens`` (N, L) of int64. The output ``scores`` (N, K) is what ``Predictor.scores`` gives. The entry ``classgap`` of the
    metadata says in JSON which class is which, and how images are resized. Where onnxruntime is installed, the scores of a few
    random samples are compared first.

    Args:
        run: The folder of a run, or what :func:`classgap.load_run` returned.
        out: The file, ``NAME.onnx``.
    """
    path = Path(out)
    if path.suffix != ".onnx":
        raise InputError(f"--out must end in .onnx, got {path.name!r}")
    for library in ("onnx", "onnxscript"):
        if find_spec(library) is None:
            raise InputError(f"export needs {library}; install it: pip install 'classgap[export]'")
    predictor = run if isinstance(run, Predictor) else load_run(run)
    if predictor.device.type != "cpu":
        raise InputError("export works on the CPU; load the run with device='cpu'")
    network = ScoringNetwork(predictor).eval()
    name, samples = _samples(predictor)
    program = _program(network, name, samples)
    about = _about(predictor, name, samples)
    program.model.metadata_props["classgap"] = json.dumps(about)
    with replacing(path) as temporary:
        program.save(str(temporary))
        difference = _difference(temporary, network, name, samples)
    return Exported(path, about, difference)


def _samples(run: Predictor) -> tuple[str, Tensor]:
    """Name of the input, and a few samples."""
    generator = torch.Generator().manual_seed(0)
    shape = (_ROWS, *run.expected.in_shape)
    if len(shape) == 4 and not run.expected.standardised:
        return "images", torch.rand(shape, generator=generator)
    if len(shape) == 4:
        return "images", torch.randint(0, 256, shape, generator=generator, dtype=torch.uint8)
    if run.expected.encode is not None:
        return "tokens", run.expected.encode(["a text", "another text that is longer", "one"])
    return "vectors", torch.randn(shape, generator=generator)


def _program(network: nn.Module, name: str, samples: Tensor) -> Any:
    try:
        with quiet(), torch.no_grad():
            return torch.onnx.export(
                network,
                (samples,),
                dynamo=True,
                verbose=False,
                input_names=[name],
                output_names=["scores"],
                dynamic_shapes=({0: torch.export.Dim("batch")},),
            )
    except Exception as error:  # whatever the exporter raises about an operation that it does not know
        reason = str(error).strip().split("\n", 1)[0]
        raise InputError(f"the network cannot be written as ONNX: {reason} ({type(error).__name__})") from error


def _about(run: Predictor, name: str, samples: Tensor) -> dict[str, Any]:
    data = run.config.data
    about: dict[str, Any] = {
        "class_names": list(run.class_names),
        "input": {
            "name": name,
            "dtype": str(samples.dtype).removeprefix("torch."),
            "shape": list(run.expected.in_shape),
        },
        "output": "scores (logits); the largest one is the predicted class",
        "correction": None if run.correction is None else type(run.correction).__name__,
        "augment": list(run.config.predict.augment),
        "classgap": classgap.__version__,
    }
    if name == "images":
        height, width = run.expected.in_shape[1:]
        about["images"] = {
            "shorter_side": data.resize or data.size or min(height, width),
            "centre_crop": [height, width],
            "interpolation": data.interpolation,
            "values": "0 to 255; standardised in the graph"
            if run.expected.standardised
            else "floating point, in the range of the training images; used as they are",
        }
    if name == "tokens":
        about["tokens"] = {
            "tokenizer": "folder network/ of the run",
            "padding": "max_length",
            "length": samples.shape[1],
        }
    return about


def _difference(path: Path, network: nn.Module, name: str, samples: Tensor) -> float | None:
    """Largest difference of a score under onnxruntime; an error where it is not rounding."""
    if find_spec("onnxruntime") is None:
        return None
    import onnxruntime

    session = onnxruntime.InferenceSession(path.read_bytes(), providers=["CPUExecutionProvider"])
    largest, size = 0.0, 0.0
    for rows in (samples, samples[:1]):
        with torch.no_grad():
            expected = network(rows).numpy()
        found = session.run(["scores"], {name: rows.numpy()})[0]
        largest = max(largest, float(np.abs(found - expected).max()))
        size = max(size, float(np.abs(expected).max()))
    if not largest <= _TOLERANCE * max(1.0, size):
        raise InputError(f"the exported network gives other scores (difference {largest:.2g}); nothing was written")
    return largest
