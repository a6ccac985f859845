"""Runs that treat some classes differently, chosen by a first look: other augmentation, or more samples."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from functools import partial
from typing import Any, Literal, get_args

import numpy as np
import torch
from numpy.typing import NDArray

from classgap.checks import InputError, one_of, whole
from classgap.data import Split, TrainingData, mixed_seed, policies
from classgap.measure.statistics.groups import THIRDS, third_sizes
from classgap.registry import Choice, method
from classgap.training.config import TrainConfig, read_run
from classgap.training.epoch import accuracy_by_class
from classgap.training.folder import write_run
from classgap.training.loop import Trainer
from classgap.training.stages.base import MultiStage, Stage
from classgap.writing import write

Chosen = Literal["hard", "easy", "random"]
Counts = NDArray[np.int64]
_ADDED = "added_samples.json"


def chosen_third(to: Chosen, data: TrainingData, seed: int, before: Trainer | None = None) -> NDArray[np.bool_]:
    """The third of the classes (K,) that is treated differently, equally many for every ``to``.

    ``"hard"`` and ``"easy"`` have the lowest and highest accuracy of ``before`` on the validation set; classes of equal accuracy
    are ordered by the mean probability of the true class. ``"random"`` is a random third.
    """
    size, found = hard_size(data), np.zeros(data.num_classes, dtype=bool)
    if to == "random":
        found[np.random.default_rng(mixed_seed(seed, 5)).permutation(data.num_classes)[:size]] = True
        return found
    val = _validation(to, data)
    assert before is not None
    scores, _ = before.predict(val)
    target = val.y.to(scores.device)
    accuracy = accuracy_by_class(scores, target, data.num_classes)
    own = scores.softmax(1).gather(1, target[:, None])[:, 0].double().cpu().numpy()
    sums = np.bincount(val.y.numpy(), own, minlength=data.num_classes)
    supports = np.bincount(val.y.numpy(), minlength=data.num_classes)
    ties = sums / np.maximum(supports, 1) / (1 + supports.max())  # less than one sample more or less
    order = np.argsort(np.where(supports > 0, accuracy + ties, np.inf if to == "hard" else -np.inf), kind="stable")
    found[order[:size] if to == "hard" else order[::-1][:size]] = True
    return found


def hard_size(data: TrainingData) -> int:
    """Number of classes in the hard third."""
    return third_sizes(data.num_classes)[THIRDS.index("hard")]


def _validation(to: str, data: TrainingData) -> Split:
    if data.val is None:
        raise InputError(f"stage.to={to} ranks classes on the validation set; set data.val_fraction above 0")
    return data.val


# --- augmentation ---------------------------------------------------------------------------------------------------


@method(
    "augment_classes",
    kind="stage",
    family="classes",
    paper="classgap",
    space={"to": Choice(get_args(Chosen), default="hard")},
)
class AugmentClasses(MultiStage):
    """Another augmentation for one third of the classes, e.g. for those that a first run finds hard.

    The first run is the same without this stage; its accuracy on the validation set says which classes are hard or easy. Then a
    network is trained from the beginning: samples of the chosen classes get the augmentations ``augment``, all others those of
    ``data.augment``. Both directions can be asked for, stronger or weaker than ``data.augment``.

    When to use: augmentation that helps most classes and hurts some, or that hard classes lack.
    Expect: on balanced data, published for ImageNet (arXiv:2401.01764): weaker cropping for the classes that strong cropping
    hurts gave them back part of the loss; not measured here. Stronger augmentation of the hard third (RandAugment, fine-tuning,
    one run) cost hard classes accuracy, and of a random third nearly as much (docs/evidence.md). On long tails not measured.
    Pitfalls: two runs; in a suite the first one is the run without the stage and is not repeated. The augmentation itself can
    tell the network the class: an image with the traces of a strong augmentation is of a chosen class. Compare with
    ``to=random``. With few validation samples the third is chosen partly by chance.

    Args:
        to: ``"hard"`` or ``"easy"``, by validation accuracy, or ``"random"``, the control, which needs no first run.
        augment: Names of augmentations as in ``data.augment``, separated by commas; ``"none"`` for no augmentation.
        classes: Names of the classes instead of a third; needs no first run.
    """

    def __init__(
        self,
        *,
        to: Chosen = "hard",
        augment: str | Sequence[str] | None = "crop,flip,autoaugment",
        classes: Sequence[str] | None = None,
    ) -> None:
        self.to: Chosen = one_of("stage.to", to, get_args(Chosen))
        names = augment.split(",") if isinstance(augment, str) else augment or ()
        self.augment = tuple(name.strip() for name in names if name.strip() not in ("", "none"))
        if classes is not None and (isinstance(classes, str) or not isinstance(classes, Sequence) or not len(classes)):
            raise InputError(f'stage.classes must be a list of class names, e.g. ["cat", "dog"], got {classes!r}')
        self.classes = None if classes is None else tuple(map(str, classes))

    def stages(self, config: TrainConfig) -> tuple[Stage, ...]:
        if self.classes is not None or self.to == "random":
            return (Stage("", config, trainer=self._trainer),)
        trainer = partial(self._trainer, later=True)
        return Stage("stage1", config), Stage("", config, begin=self._choose, trainer=trainer)

    def _trainer(
        self, config: TrainConfig, data: TrainingData, *args: Any, later: bool = False, **options: Any
    ) -> Trainer:
        if "resized_crop" in (config.data.augment or ()) and not isinstance(data.train.x, torch.Tensor):
            raise InputError(
                "stage augment_classes cannot be used with data.augment=resized_crop on image files; leave it out"
            )
        made = policies(self.augment, data.mean, crop_scale=data.crop_scale)
        if made and len(data.in_shape) != 3:
            raise InputError(f"stage.augment={','.join(self.augment)} needs images, but {data.name} holds vectors")
        if later:
            _validation(self.to, data)
        trainer = Trainer(config, data, *args, **options)
        if not later:
            trainer.batches.augment_classes(torch.from_numpy(self._given(data, config.seed)), made)
        return trainer

    def _given(self, data: TrainingData, seed: int) -> NDArray[np.bool_]:
        if self.classes is None:
            return chosen_third(self.to, data, seed)
        if unknown := sorted(set(self.classes) - set(data.class_names)):
            raise InputError(f"stage.classes names {unknown[0]!r}, which is none of the classes of {data.name}")
        return np.isin(np.array(data.class_names), self.classes)

    def _choose(self, trainer: Trainer, before: Trainer) -> None:
        data = trainer.data
        classes = chosen_third(self.to, data, trainer.config.seed, before)
        made = policies(self.augment, data.mean, crop_scale=data.crop_scale)
        trainer.batches.augment_classes(torch.from_numpy(classes), made)


# --- more samples ---------------------------------------------------------------------------------------------------

To = Literal["hard", "easy", "random", "all"]


def added_counts(to: To, per_class: int, data: TrainingData, seed: int, before: Trainer | None = None) -> Counts:
    """Samples to add of each class (K,), as many in total for every ``to``: ``per_class`` for each class of a third.

    ``"all"`` spreads them over all classes; the remainder goes to random ones.
    """
    if to != "all":
        return np.where(chosen_third(to, data, seed, before), per_class, 0)
    total = per_class * hard_size(data)
    each, rest = divmod(total, data.num_classes)
    counts = np.full(data.num_classes, each)
    counts[np.random.default_rng(mixed_seed(seed, 6)).permutation(data.num_classes)[:rest]] += 1
    return counts


def with_added(data: TrainingData, counts: Counts, seed: int) -> TrainingData:
    """The data with ``counts`` of the spare samples of each class as further training samples, the same ones for every choice."""
    assert data.spare is not None
    labels = data.spare.y.numpy()
    rows = []
    for k, wanted in enumerate(counts):
        members = np.random.default_rng(mixed_seed(seed, 7, k)).permutation(np.flatnonzero(labels == k))
        rows.append(members[:wanted])
    added = data.spare.take(torch.from_numpy(np.sort(np.concatenate(rows))))
    return dataclasses.replace(data, train=data.train.joined(added))


class AddingTrainer(Trainer):
    """A run on the training samples and on some of the spare ones, which may be known only after a first run."""

    def __init__(
        self, config: TrainConfig, data: TrainingData, *args: Any, to: To, per_class: int | None, **options: Any
    ) -> None:
        self._per_class = _spare_per_class(data, per_class)
        self._to, self._base, self._options = to, data, options
        if to in ("random", "all"):
            data = with_added(data, added_counts(to, self._per_class, data, config.seed), config.seed)
        else:
            _validation(to, data)
        super().__init__(config, data, *args, **options)

    def choose(self, before: Trainer) -> None:
        """Add samples of the classes that the first run finds hard or easy, unless they were added before."""
        if self.data is not self._base:
            return
        counts = added_counts(self._to, self._per_class, self._base, self.config.seed, before)
        if self.fabric.is_global_zero:
            write(self.folder / _ADDED, json.dumps({"added": counts.tolist()}) + "\n")
        self._restart(counts)
        if self.fabric.is_global_zero and (config := read_run(self.folder)) is not None:
            write_run(self, config)  # class counts are part of it

    def resume(self) -> None:
        """Continue with the samples that were added before the checkpoint was made."""
        path = self.folder / _ADDED
        if self._to in ("hard", "easy") and self.checkpoint.exists():
            if not path.exists():
                raise InputError(f"{path} says which samples were added, but it is missing; restore it, or start over")
            self._restart(np.array(json.loads(path.read_text())["added"]))
        super().resume()

    def _restart(self, counts: Counts) -> None:
        """Build everything anew, for the larger training set: losses and batches depend on it."""
        kept = self.before_training, self.lock
        data = with_added(self._base, counts, self.config.seed)
        super().__init__(self.config, data, self.fabric, self.folder, self.watch, **self._options)
        self.before_training, self.lock = kept


def _spare_per_class(data: TrainingData, wanted: int | None) -> int:
    """Samples to add of each chosen class."""
    if data.spare is None:
        raise InputError(
            "stage add_samples adds training samples that were kept aside; set data.per_class and data.spare, e.g. "
            "data.per_class=60 data.spare=30"
        )
    available = int(np.bincount(data.spare.y.numpy(), minlength=data.num_classes).min())
    if wanted is not None and wanted > available:
        raise InputError(
            f"stage.per_class={wanted} is more than the data.spare={available} samples kept aside per class"
        )
    return available if wanted is None else wanted


@method(
    "add_samples",
    kind="stage",
    family="classes",
    paper="classgap",
    space={"to": Choice(get_args(To), default="hard")},
)
class AddSamples(MultiStage):
    """More training samples for one third of the classes, e.g. for those that a first run finds hard.

    What is one more label worth, and where? ``data.per_class=60 data.spare=30`` keeps 30 labelled samples per class aside. A
    first run without them finds the hard third of the classes on the validation set; the second run, from the beginning, has
    the spare samples of these classes too. The controls, ``to=random`` and ``to=all``, add as many samples in total.

    When to use: to decide which classes to label more of. The test set is never used for the choice.
    Expect: on balanced data the added classes gain most; the set is no longer balanced, so their scores grow at the cost of
    others. On long tails not possible: ``data.spare`` needs a balanced set.
    Pitfalls: losses that use class counts see the larger ones of the chosen classes. With few validation samples the third
    is chosen partly by chance, and so contains classes that are not hard. An epoch has more steps than before.

    Args:
        to: ``"hard"`` or ``"easy"``, by validation accuracy of a first run; ``"random"``, a random third; ``"all"``, all classes
            alike.
        per_class: Samples added of each class of a third; ``"all"`` spreads the same total over all classes. None for all of
            ``data.spare``.
    """

    def __init__(self, *, to: To = "hard", per_class: int | None = None) -> None:
        self.to: To = one_of("stage.to", to, get_args(To))
        self.per_class = None if per_class is None else whole("stage.per_class", per_class, low=1)

    def stages(self, config: TrainConfig) -> tuple[Stage, ...]:
        last = Stage("", config, trainer=partial(AddingTrainer, to=self.to, per_class=self.per_class))
        if self.to in ("random", "all"):
            return (last,)
        return Stage("stage1", config), dataclasses.replace(last, begin=_choose)


def _choose(trainer: Trainer, before: Trainer) -> None:
    assert isinstance(trainer, AddingTrainer)
    trainer.choose(before)
