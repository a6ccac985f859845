"""A finished run as a predictor: network with weights, pre-processing and class names."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from classgap import posthoc
from classgap.checks import InputError, reading
from classgap.data import (
    Encode,
    Expected,
    FileOptions,
    Normalise,
    Part,
    Split,
    TrainingData,
    default_workers,
    mean_over_views,
    open_samples,
    require_images,
)
from classgap.models import text_encoder
from classgap.posthoc import PostHocMethod
from classgap.predictions import Predictions
from classgap.predictions.labels import check_names
from classgap.training.build import Network
from classgap.training.config import PredictConfig, TrainConfig, read_run
from classgap.training.outputs import SplitOutputs, chunk_size, last_layer, require_finite_scores, scores_and_features
from classgap.training.stages.base import load_network, without_pretraining


class Predictor:
    """A trained classifier, ready to use; :func:`load_run` makes one.

    Attributes:
        config: What was trained.
        model: The network in evaluation mode, ``(logits, features)`` of standardised inputs.
        class_names: Names in the order of the scores.
        expected: Classes, shape of a sample, and how image files are read.
        train_counts: Training samples of each class.
        normalise: From samples as they are read to inputs of the network.
        criterion, head: Loss and kind of head; some losses change scores.
        correction: What a stage such as ``gap_dial`` fitted after training; ``None`` without such a stage.
    """

    def __init__(
        self,
        config: TrainConfig,
        network: Network,
        data: TrainingData,
        correction: PostHocMethod | None,
        device: torch.device,
        encode: Encode | None = None,
    ) -> None:
        self.config, self.device, self.correction = config, device, correction
        self.class_names, self.train_counts = data.class_names, data.class_counts.numpy()
        own = config.data
        files = FileOptions(own.size, own.resize, None, own.test_fraction, interpolation=own.interpolation)
        self.expected = Expected(data.class_names, data.in_shape, files, encode, bool(data.mean))
        self.model: nn.Module = network.model.to(self.device).eval()
        self._network, self.criterion, self.head = network, network.criterion, network.head
        network.criterion.to(self.device).eval()
        channels_last = config.channels_last and len(data.in_shape) == 3
        self.normalise = Normalise(data.mean, data.std, channels_last=channels_last)

    def predict(self, data: Any, labels: Any = None, **options: Any) -> Predictions:
        """Labels, scores and features of samples whose true labels are known, for audit, compare and fix.

        Args:
            data: The name or path of a data set as in ``data.name`` (a folder may also be ``PATH/CLASS/…`` with some of the
                classes), a torch data set, or an array or tensor of samples in the shape that the network was trained on.
            labels: True labels of samples that come as an array: class indices or names.
            options: Those of :meth:`outputs`.
        """
        return self.outputs(data, labels, **options).predictions()

    def scores(self, data: Any, **options: Any) -> NDArray[np.float32]:
        """Scores (n, K) of samples, whose labels need not be known; see :meth:`outputs`."""
        views = self._views(options.pop("augment", None))
        opened = open_samples(data, None, options.pop("part", None), self._reading(**options))
        return self._forward(opened.split, views)[0]

    def outputs(
        self,
        data: Any,
        labels: Any = None,
        *,
        part: Part | None = None,
        root: str | None = None,
        skip_corrupt: bool = False,
        workers: int | None = None,
        augment: str | Sequence[str] | None = None,
    ) -> SplitOutputs:
        """What :meth:`predict` returns, before it is encoded.

        Args:
            part: ``"train"``, ``"val"``, ``"test"`` or ``"all"``; by default the test part where there are parts, otherwise all.
            root: Folder that paths in a table or list file are relative to; by default the folder of that file.
            skip_corrupt: Leave out image files that cannot be decoded.
            workers: Processes that decode image files; by default one per processor core, at most 8.
            augment: Test-time augmentation of images, ``"flip"``, ``"crop"`` or ``"flip,crop"``: scores and features are means
                over the views, so the last layer still turns the features into the scores. ``"none"`` for the plain images; by
                default as the run itself predicts, ``predict.augment``.
        """
        views = self._views(augment)
        reading = self._reading(root=root, skip_corrupt=skip_corrupt, workers=workers)
        opened = open_samples(data, labels, part, reading)
        if opened.labels is None:
            raise InputError("predict needs true labels: pass labels=, or use scores() for samples without labels")
        scores, features = self._forward(opened.split, views)
        weight, bias = self.last_layer()
        norms = None if self.correction is None else self.correction.margin_norms
        return SplitOutputs(
            y_true=opened.labels,
            scores=scores,
            features=features,
            weight=weight,
            bias=bias,
            class_names=self.class_names,
            train_counts=self.train_counts,
            margin_norms=None if norms is None else np.asarray(norms, dtype=np.float32),
            ids=opened.split.ids,
            notes=opened.notes,
        )

    def _reading(self, **options: Any) -> Expected:
        options["workers"] = default_workers() if options.get("workers") is None else options["workers"]
        return dataclasses.replace(self.expected, files=dataclasses.replace(self.expected.files, **options))

    @property
    def pending(self) -> PostHocMethod | None:
        """The correction, where the weights do not have it; see ``CorrectedTrainer.weights``."""
        stored = self.correction
        return None if stored is None or (self.head != "cosine" and stored.foldable) else stored

    def last_layer(self) -> tuple[NDArray[np.float32] | None, NDArray[np.float32] | None]:
        """Weight and bias of the layer behind the scores, with the correction; ``None`` where there is no such layer."""
        layer = last_layer(self.model, self.head, self._network.experts, self.criterion)
        weight, bias = (None if t is None else t.detach().float().cpu().numpy() for t in layer)
        if self.pending is None:
            return weight, bias
        if not self.pending.foldable:
            return None, None  # the scores are not those of a linear layer
        folded = self.pending.fold(weight, bias)
        return folded[0].astype(np.float32), folded[1].astype(np.float32)

    def _views(self, augment: str | Sequence[str] | None) -> tuple[str, ...]:
        """The views to average over."""
        if augment is None:
            return self.config.predict.augment
        words = augment.split(",") if isinstance(augment, str) else augment
        chosen = PredictConfig(tuple(word.strip() for word in words if word.strip() not in ("", "none")))
        chosen.check("augment")
        if chosen.augment:
            require_images(f"augment={','.join(chosen.augment)}", self.expected.in_shape)
        return chosen.augment

    @torch.no_grad()
    def _forward(self, split: Split, views: Sequence[str]) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        def forward(x: Tensor) -> tuple[Tensor, Tensor]:
            logits, features = self.model(self.normalise(x))
            return scores_and_features(self.criterion, self.head, logits.float(), features.float())

        chunks = torch.split(torch.arange(len(split)), chunk_size(self.expected.in_shape))
        parts = []
        for chunk in split.read(chunks):
            x = chunk.to(self.device)
            found = mean_over_views(forward, x, views) if views else forward(x)
            parts.append([tensor.cpu() for tensor in found])
        scores, features = (torch.cat(tensors).numpy() for tensors in zip(*parts, strict=True))
        require_finite_scores(
            scores, "the weights or the description of the run are damaged, or the samples hold such values"
        )
        if self.pending is not None:
            scores = np.asarray(self.pending.transform(scores, features=features), dtype=np.float32)
        return scores, features


def find_device(name: str) -> torch.device:
    """The device of this name, if torch can compute there."""
    try:
        device = torch.device(name)
        torch.zeros(1, device=device).cpu()
    except (RuntimeError, TypeError, AssertionError, NotImplementedError) as error:  # without its library, an assertion
        reason = " ".join(str(error).split())[:160]
        raise InputError(f"device must be cpu, or cuda or mps where there is one, got {name!r} ({reason})") from None
    return device


def load_run(folder: str | Path, *, device: str = "cpu") -> Predictor:
    """The trained classifier of a finished run, ready to predict.

    Args:
        folder: Folder of a run of :func:`classgap.train` or ``classgap train``.
        device: Where it computes, as torch names it.
    """
    place, where = Path(folder), find_device(device)
    config = read_run(place)
    if config is None:
        raise InputError(f"there is no run in {place}: it lacks run.json")
    if not (place / "model.safetensors").exists():
        raise InputError(f"the run in {place} is not finished; continue it: classgap train --resume --out {place}")
    data = _data_of(place)
    network = load_network(place, data)
    correction = posthoc.load(place) if (place / "method.json").exists() else None
    model = without_pretraining(config, place).model
    encode = text_encoder(model.name, model.tokens)
    return Predictor(config, network, data, correction, where, encode)


def predict(run: str | Path | Predictor, data: Any, labels: Any = None, **options: Any) -> Predictions:
    """What the classifier of a finished run says about samples: ``load_run(run).predict(data)``; see :class:`Predictor`."""
    predictor = run if isinstance(run, Predictor) else load_run(run)
    return predictor.predict(data, labels, **options)


def _data_of(folder: Path) -> TrainingData:
    """What a network is built from: shapes, classes and counts, without any samples."""
    with reading(folder / "run.json", "the description of a run"):
        about = json.loads((folder / "run.json").read_text(encoding="utf-8")).get("data")
        if about is None:
            raise InputError(
                f"{folder / 'run.json'} does not say what the data were like: an earlier version wrote it; train again"
            )
        counts = torch.tensor(about["train_counts"])
        labels = torch.repeat_interleave(torch.arange(len(counts)), counts)
        nothing = torch.empty((0, *about["in_shape"]), dtype=torch.uint8)
        names = tuple(check_names(about["class_names"], len(counts)))
        if len(about["in_shape"]) == 3 and not len(about["mean"]) == len(about["std"]) in (0, about["in_shape"][0]):
            raise ValueError(f"mean and std must hold one number per channel, {about['in_shape'][0]}, or none")
        return TrainingData(
            name=str(about["name"]),
            train=Split(nothing, labels),
            val=None,
            test=Split(nothing, labels[:0]),
            class_names=names,
            mean=tuple(map(float, about["mean"])),
            std=tuple(map(float, about["std"])),
            augment=(),
            split_hash="",
        )
