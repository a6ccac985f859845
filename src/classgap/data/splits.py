"""Which samples are in the training set: validation split, per-class limits and long-tail profiles. NumPy only."""

from __future__ import annotations

import hashlib
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from classgap.checks import InputError, number, one_of

Indices = NDArray[np.int64]
Profile = Literal["balanced", "exponential", "step"]
PROFILES: tuple[Profile, ...] = ("balanced", "exponential", "step")


def profile_counts(num_classes: int, n_max: int, profile: Profile, imbalance: float) -> Indices:
    r"""Training samples of each class under a profile of imbalance factor :math:`IF`.

    ``exponential``: :math:`n_k = \lfloor n_{max} \cdot IF^{-k/(K-1)} \rfloor` (Cui et al. 2019, Cao et al. 2019);
    ``step``: the first half of the classes :math:`n_{max}`, the others :math:`\lfloor n_{max}/IF \rfloor`. Truncated,
    never rounded, and at least 1.

    Example:
        >>> profile_counts(10, 5000, "exponential", 100)
        array([5000, 2997, 1796, 1077,  645,  387,  232,  139,   83,   50])
    """
    one_of("data.profile", profile, PROFILES)
    number("data.imbalance", imbalance, low=1.0)
    if profile == "balanced":
        return np.full(num_classes, n_max)
    if profile == "step":
        head = np.arange(num_classes) < num_classes // 2
        return np.where(head, n_max, max(1, int(n_max / imbalance)))
    # Python floats, as in the original code: whether 49.999… or 50 comes out decides the published totals.
    counts = [int(n_max * (1 / imbalance) ** (k / (num_classes - 1.0))) for k in range(num_classes)]
    return np.maximum(counts, 1).astype(np.int64)


def choose(labels: NDArray[Any], pool: Indices, counts: Indices, seed: int) -> Indices:
    """``counts[k]`` members of ``pool`` of each class ``k``, in ascending order.

    Each class is shuffled in turn by one legacy generator and cut, as the long-tail literature does; so the members of a
    smaller set are members of every larger one.
    """
    rng = np.random.RandomState(seed)
    chosen = []
    for k, wanted in enumerate(counts):
        members = pool[labels[pool] == k]
        if len(members) < wanted:
            raise InputError(
                f"data asks for {wanted} training samples of class {k}, which has {len(members)} after the validation "
                "split; lower data.per_class or data.val_fraction"
            )
        rng.shuffle(members)
        chosen.append(members[:wanted])
    return np.sort(np.concatenate(chosen))


def hold_out(
    labels: NDArray[Any], num_classes: int, fraction: float, seed: int, same: NDArray[Any] | None = None
) -> tuple[Indices, Indices]:
    """Split all samples into ``(rest, held_out)``, the latter with ``fraction`` of every class and at least one of each.

    Args:
        same: A number for each sample; samples with the same number, e.g. of the same text, stay together.
    """
    number("data.val_fraction", fraction, low=0.0, high=0.9)
    rows = np.arange(len(labels))
    if fraction == 0:
        return rows, rows[:0]
    sizes = np.bincount(labels, minlength=num_classes)
    wanted = np.maximum(np.round(sizes * fraction), 1).astype(np.int64)
    if (wanted >= sizes).any():
        k = int(np.argmin(sizes - wanted))
        raise InputError(
            f"class {k} has {sizes[k]} training samples, too few to hold out {fraction:g} for validation; "
            "set data.val_fraction=0"
        )
    held = choose(labels, rows, wanted, seed + 1)
    if same is not None:
        held = np.flatnonzero(np.isin(same, same[held]))
        if lost := sorted(set(range(num_classes)) - set(np.delete(labels, held).tolist())):
            raise InputError(
                f"class {lost[0]} has only samples that are listed several times, too few to hold out {fraction:g} for "
                "validation; set data.val_fraction=0"
            )
    return np.setdiff1d(rows, held), held


def split_hash(*parts: NDArray[Any]) -> str:
    """Twelve hexadecimal digits that change when any member of a split changes."""
    digest = hashlib.sha256()
    for part in parts:
        digest.update(str(part.shape).encode())
        digest.update(np.ascontiguousarray(part).tobytes())
    return digest.hexdigest()[:12]
