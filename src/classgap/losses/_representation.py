r"""The pull between features of a class, on the scales the paper and its code give it: the second half of MR²."""

from __future__ import annotations

from typing import Any, Literal

from torch import Tensor

from classgap._checks import InputError
from classgap.losses._pairs import PairMode, within_class_pull
from classgap.stats import ClassPairs, total_scatter
from classgap.stats.arrays import as_array, library

FeatureForm = Literal["paper", "release", "scale_free"]


def representation_margin(
    features: Tensor,
    target: Tensor,
    sbar: Tensor,
    *,
    form: FeatureForm = "paper",
    pair: PairMode | None = None,
    num_classes: int | None = None,
    total: Tensor | None = None,
    running_total: Tensor | None = None,
    temperature: float = 0.5,
    anchors: tuple[int, int] | None = None,
    batch: int | None = None,
    index: Tensor | None = None,
    pairs: ClassPairs | None = None,
) -> Tensor:
    r"""Mean over the batch of how far samples of a class lie apart, beyond twice the average spread.

    .. math:: \ell_i = \ln\Big[1 + \sum_{j\ne i,\,y_j=y_i}\exp\big(\|\phi_i-\phi_j\|^2 - 2\bar s\big)\Big]

    Args:
        sbar: :math:`\bar s`, average within-class squared deviation, not differentiated.
        form: ``"paper"`` is eq. (2) on the batch. ``"release"`` is what the authors' code computes: exponents divided by
            :math:`10 d`, the result times :math:`d/10`, averaged within each class and divided by :math:`K`.
            ``"scale_free"`` measures distances in units of the total scatter :math:`V` of the batch,
            :math:`\|\phi_i-\phi_j\|^2/2V - \bar s/\bar V`, so that the weight means the same for every :math:`K, N, d`, and,
            because :math:`V` is differentiated, shrinking all features together gains nothing.
        pair: How partners are combined (:func:`within_class_pull`); by default a mean in ``"scale_free"``, else a sum.
        num_classes: :math:`K`, for ``"release"``.
        total: :math:`V`, for ``"scale_free"``; by default computed from the anchors.
        running_total: :math:`\bar V`, to compare :math:`\bar s` with; by default :math:`V`, not differentiated.
        temperature: Softness of the ``"scale_free"`` form, in units of the total scatter.
        batch: How many of the rows, the first ones, are the batch; the rest is memory. Default: all.
        anchors, index, pairs: See :func:`within_class_pull`.
    Shape:
        features :math:`(M, d)`, target :math:`(M,)`; returns a scalar.
    Reference: eq. (2).
    """
    start, stop = anchors or (0, features.shape[0])
    samples = max(1, stop - start)
    options: dict[str, Any] = {"anchors": anchors, "index": index, "pairs": pairs}
    if form == "paper":
        options["weight"] = features.new_full((stop - start,), 1 / samples)
        return within_class_pull(features, target, 2 * sbar, pair=pair or "sum", **options)
    if form == "scale_free":
        total = (total_scatter(features[start:stop]) if total is None else total).clamp_min(1e-12)
        slack = sbar / ((total if running_total is None else running_total).detach() * temperature)
        weight = features.new_full((stop - start,), temperature / samples)
        options |= {"scale": 0.5 / (total * temperature), "weight": weight}
        return within_class_pull(features, target, slack, pair=pair or "mean", **options)
    if num_classes is None:
        raise InputError("form='release' divides by the number of classes: pass num_classes")
    unit = 10 * features.shape[1]
    # A mean within each class over K is a mean over samples in which each counts N/(K·b): so it adds up over ranks too.
    labels = as_array(target)
    size = library(labels).bincount(labels[:batch], None, num_classes)[labels[start:stop]]
    weight = (len(labels[:batch]) / num_classes * unit / 100 / samples) / size
    options |= {"scale": 1 / unit, "weight": weight}
    return within_class_pull(features, target, as_array(sbar) * (2 / unit), pair=pair or "sum", **options)
