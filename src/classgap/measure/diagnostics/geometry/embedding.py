"""Two-dimensional projection of the hardest classes and their most frequent errors."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from classgap.checks import one_of

if TYPE_CHECKING:
    from classgap.measure.audit_report import AuditReport

Projection = Literal["tsne", "pca"]


@dataclass(frozen=True, eq=False)
class Embedding:
    """Positions of some samples in the plane. ``rows`` are their indices, ``classes`` the class indices shown."""

    method: Projection
    rows: NDArray[np.int64]
    position: NDArray[np.float64]
    classes: tuple[int, ...]


def embed(
    report: AuditReport, *, method: Projection = "tsne", max_classes: int = 8, max_points: int = 480
) -> Embedding | None:
    """Project the features of the worst classes and of their most frequent errors; None if the audit had no features.

    t-SNE shows neighbourhoods (distances between clusters are not meaningful), PCA the directions of largest variance.
    """
    one_of("method", method, ("tsne", "pca"))
    samples = report.samples
    if samples is None or samples.features is None:
        return None
    shown = hard_and_confused(report, max_classes)
    rows = _subsample(samples.y_true, shown, max_points, report.seed)
    if len(rows) < 3:
        return None
    features = np.asarray(samples.features[rows], dtype=np.float64)
    return Embedding(method, rows, _project(features, method, report.seed), shown)


def hard_and_confused(report: AuditReport, limit: int) -> tuple[int, ...]:
    """The classes with the lowest accuracy, each followed by its most frequent error; at most ``limit`` classes."""
    accuracy = np.where(report.per_class["support"] > 0, report.per_class["accuracy"], np.nan)
    chosen: list[int] = []
    for k in np.argsort(accuracy, kind="stable"):
        if np.isnan(accuracy[k]) or len(chosen) >= limit:
            break
        for member in (int(k), most_frequent_error(report, int(k))):
            if member is not None and member not in chosen and len(chosen) < limit:
                chosen.append(member)
    return tuple(chosen)


def most_frequent_error(report: AuditReport, k: int) -> int | None:
    """The other class that is most often predicted for samples of class ``k``; None if there are no errors."""
    row: Any = report.confusion.counts[[k]]
    counts = np.array(row.toarray() if hasattr(row, "toarray") else row, dtype=np.int64).ravel()
    counts[k] = 0
    return int(counts.argmax()) if counts.any() else None


def _subsample(y_true: NDArray[np.int64], classes: tuple[int, ...], max_points: int, seed: int) -> NDArray[np.int64]:
    rng = np.random.default_rng(seed)
    share = max(1, max_points // max(len(classes), 1))
    members = [np.flatnonzero(y_true == k) for k in classes]
    picked = [rng.choice(rows, share, replace=False) if len(rows) > share else rows for rows in members]
    return np.sort(np.concatenate(picked)) if picked else np.empty(0, dtype=np.int64)


def _project(features: NDArray[np.float64], method: Projection, seed: int) -> NDArray[np.float64]:
    from sklearn.decomposition import PCA

    width = min(50 if method == "tsne" else 2, *features.shape)
    reduced = PCA(width, random_state=seed).fit_transform(features - features.mean(axis=0))
    if method == "tsne" and len(features) > 10:
        from sklearn.manifold import TSNE
        from threadpoolctl import threadpool_limits

        tsne = TSNE(perplexity=min(30.0, (len(features) - 1) / 3), init="pca", max_iter=500, random_state=seed)
        # A few hundred points are too little work for several threads.
        with threadpool_limits(1):
            reduced = tsne.fit_transform(reduced)
    if reduced.shape[1] == 1:
        reduced = np.column_stack([reduced, np.zeros(len(reduced))])
    return np.asarray(reduced[:, :2], dtype=np.float64)
