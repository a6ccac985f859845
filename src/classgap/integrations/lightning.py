"""A callback for Lightning that audits every validation epoch. ::

    trainer = Trainer(callbacks=[AuditCallback(class_names), ModelCheckpoint(monitor="val/hard", mode="max")])

``validation_step`` must return a mapping with ``target`` and with ``logits``, or with ``scores``, which are
``criterion.scores(logits, features)``: what the loss ranks classes by. A loss of classgap needs no adapter: as an attribute of
the module it is moved, saved and switched to evaluation by Lightning, and optimised if ``configure_optimizers`` names its
parameters.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DistributedSampler

try:
    from lightning.pytorch import Callback
except ModuleNotFoundError:
    from pytorch_lightning import Callback

from classgap.batchstats.collectives import gather_rows, rank_and_world
from classgap.checks import InputError
from classgap.heads import FeatureTap
from classgap.integrations.scalars import class_counts, class_scalars, prefixed
from classgap.losses import ClassLoss
from classgap.measure import AuditReport, audit
from classgap.measure.render.plain import records
from classgap.predictions.export import write_table
from classgap.writing import replacing_entries, write

Rows = dict[str, Tensor]


class AuditCallback(Callback):
    """Log thirds, worst class and gap of each validation epoch, and write what is longer than a number to files.

    Logged, as ``val/hard`` etc.: ``overall, balanced, easy, medium, hard, worst, worst_decile, gap``, the same on every process.
    Files, written by the first process into ``folder/epoch_E_step_S``: ``classes.csv``, ``report.json`` and the page
    ``report.html``. Samples that a distributed sampler repeats to fill the last batches are counted once. The sanity check before
    training is left out.

    Args:
        class_names: Names in class order.
        folder: Where files go; ``classgap`` inside the folder of the logger if None.
        prefix: Put before the names of what is logged.
        page: Whether to write the report page of each validation epoch.
        features: Whether to record the input of the last linear layer, for the geometry in the report.
        layer: Name of that layer in ``module.named_modules()``, where it is not the last linear one.
        criterion: A loss that is *not* an attribute of the module. The callback then moves it, switches it to evaluation, and
            saves its state in checkpoints. It must have no parameters.
    Attributes:
        report: The latest report, on the first process (with several validation sets, that of the last one).
    """

    def __init__(
        self,
        class_names: Sequence[str] | None = None,
        *,
        folder: str | Path | None = None,
        prefix: str = "val/",
        page: bool = True,
        features: bool = False,
        layer: str | None = None,
        criterion: ClassLoss | None = None,
    ) -> None:
        if criterion is not None and any(p.requires_grad for p in criterion.parameters()):
            raise InputError(
                f"criterion {criterion.name} has parameters, which nobody would optimise; make it an attribute of the module and "
                "add its parameters in configure_optimizers"
            )
        self.class_names, self.folder, self.prefix = class_names, folder, prefix
        self.page, self.features, self.layer, self.criterion = page, features, layer, criterion
        self.report: AuditReport | None = None
        self._rows: dict[int, list[Rows]] = {}  # by validation set
        self._seen: dict[int, int] = {}
        self._listening = contextlib.ExitStack()
        self._tap: FeatureTap | None = None
        self._calls: list[tuple[Tensor, Tensor]] = []

    @property
    def state_key(self) -> str:
        """Two callbacks in one trainer must differ in their prefix."""
        return f"classgap.AuditCallback[{self.prefix}]"

    def state_dict(self) -> dict[str, Any]:
        """State of ``criterion``."""
        return {} if self.criterion is None else {"criterion": self.criterion.state_dict()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore the state of ``criterion``."""
        if self.criterion is not None:
            self.criterion.load_state_dict(state_dict["criterion"])

    def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
        if self.criterion is not None:
            self.criterion.to(pl_module.device)

    def on_train_epoch_start(self, trainer: Any, pl_module: Any) -> None:
        if self.criterion is not None:
            self.criterion.train()

    def on_validation_start(self, trainer: Any, pl_module: Any) -> None:
        self._rows, self._seen = {}, {}
        if self.criterion is not None:
            self.criterion.to(pl_module.device).eval()
        if self.features and self._tap is None:
            self._tap = FeatureTap(pl_module, self.layer)

    def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
        if self.criterion is not None:
            self.criterion.train()

    def on_validation_batch_start(self, *args: Any, **kwargs: Any) -> None:
        if self._tap is not None:
            self._calls = self._listening.enter_context(self._tap.listening())

    def on_validation_batch_end(
        self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        self._listening.close()
        rows = _rows_of(outputs, self._ranking(pl_module))
        if self._tap is not None:
            rows["features"] = self._tap.features_of(self._calls, outputs.get("logits", rows["scores"]))
        sampler = getattr(_loaders(trainer)[dataloader_idx], "sampler", None)
        seen, number = self._seen.get(dataloader_idx, 0), len(rows["target"])
        fresh = _not_repeated(sampler, seen, number)
        kept = {name: values.detach().cpu()[fresh] for name, values in rows.items()}
        self._rows.setdefault(dataloader_idx, []).append(kept)
        self._seen[dataloader_idx] = seen + number

    def on_validation_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        parts, self._rows = self._rows, {}
        if trainer.sanity_checking:
            return
        folder = self._folder(trainer)  # asks the other processes, so before any of them leaves
        for loader, batches in sorted(parts.items()):
            found = _gathered(batches, pl_module.device)
            suffix = f"/{loader}" if len(parts) > 1 else ""
            y_true, scores = found["target"], found["scores"]
            values = class_scalars(*class_counts(y_true, scores.argmax(1), scores.shape[1]))
            named = {f"{name}{suffix}": value for name, value in values.items()}
            pl_module.log_dict(prefixed(named, self.prefix), sync_dist=rank_and_world()[1] > 1)
            if trainer.is_global_zero:
                self.report = audit(
                    y_true,
                    scores=scores,
                    features=found.get("features"),
                    class_names=self.class_names,
                    scores_kind="logits",
                )
                _write(self.report, folder / suffix.lstrip("/"), page=self.page)

    def _ranking(self, pl_module: Any) -> str | None:
        """Name of a loss that ranks classes by something else than the logits."""
        losses = [module for module in pl_module.modules() if isinstance(module, ClassLoss)]
        losses += [] if self.criterion is None else [self.criterion]
        return next((loss.name for loss in losses if not loss.ranks_by_output), None)

    def _folder(self, trainer: Any) -> Path:
        inside = trainer.log_dir or trainer.default_root_dir
        top = Path(inside) / "classgap" if self.folder is None else Path(self.folder)
        return top / f"epoch_{trainer.current_epoch:03d}_step_{trainer.global_step:06d}"


def _rows_of(outputs: Any, ranking: str | None) -> Rows:
    found = set(outputs) if isinstance(outputs, Mapping) else set()
    if "target" not in found or not found & {"logits", "scores"}:
        came = f"the keys {', '.join(map(str, outputs))}" if isinstance(outputs, Mapping) else type(outputs).__name__
        raise InputError(
            f"validation_step must return a mapping with 'logits' and 'target', got {came}; end it with return "
            '{"loss": loss, "logits": logits, "target": target} (and "index", positions in the data set, if samples may repeat)'
        )
    if ranking is not None and "scores" not in found:
        raise InputError(
            f"{ranking} does not rank classes by the logits; return "
            '{"loss": loss, "scores": self.criterion.scores(logits, features), "target": target} from validation_step'
        )
    name = "scores" if "scores" in found else "logits"
    scores, target = outputs[name], outputs["target"]
    if scores.dim() != 2 or target.shape != scores.shape[:1]:
        raise InputError(
            f"validation_step must return {name} (N, K) and target (N,), got {tuple(scores.shape)} and {tuple(target.shape)}"
        )
    rows = {"scores": scores.float(), "target": target.long()}
    return rows | ({"index": outputs["index"].long()} if "index" in outputs else {})


def _loaders(trainer: Any) -> list[Any]:
    loaders = trainer.val_dataloaders
    if isinstance(loaders, Mapping):
        return list(loaders.values())
    return list(loaders) if isinstance(loaders, (list, tuple)) else [loaders]


def _not_repeated(sampler: Any, seen: int, number: int) -> Tensor:
    """Which of the next ``number`` samples of this process are no repetitions.

    A distributed sampler deals its list to the processes in turn, and lengthens the list with samples from its beginning until
    every process gets equally many: what lies beyond the size of the data set is a repetition.
    """
    positions = torch.arange(seen, seen + number)
    if not isinstance(sampler, DistributedSampler) or sampler.drop_last:
        return torch.arange(number)
    size = len(sampler.dataset)  # type: ignore[arg-type]
    return (sampler.rank + sampler.num_replicas * positions < size).nonzero().flatten()


def _gathered(batches: list[Rows], device: Any) -> dict[str, np.ndarray[Any, Any]]:
    """Rows of all processes; of samples with the same ``index`` the first."""
    rows = {
        name: gather_rows(torch.cat([part[name] for part in batches]).to(device)).cpu().numpy() for name in batches[0]
    }
    if "index" in rows:
        first = np.unique(rows.pop("index"), return_index=True)[1]
        rows = {name: values[first] for name, values in rows.items()}
    return rows


def _write(report: AuditReport, folder: Path, *, page: bool) -> None:
    rows = records(report.per_class)
    with replacing_entries(folder, ("report.json", "classes.csv", "report.html")) as temporary:
        write(temporary / "report.json", json.dumps(report.to_dict(), indent=2))
        write_table({name: [row[name] for row in rows] for name in rows[0]}, temporary / "classes.csv")
        if page:
            report.to_html(temporary / "report.html")
