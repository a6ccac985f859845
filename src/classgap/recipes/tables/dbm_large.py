"""DBM on ImageNet-LT (Table 3) and iNaturalist 2018 (Table 4), inside BCL and GML.

    classgap bench dbm_large --tables-only                      # the published numbers, and what has been run
    classgap bench dbm_large --only "ImageNet-LT, ResNet-50/*" --set data.root=DIR
Settings from the recipes dbm_imagenet_lt and dbm_inat18; for several GPUs. Numbers of the compared methods are quoted from other
papers, with their settings.
"""

from __future__ import annotations

from collections.abc import Sequence

from classgap.recipes.tables.common import ERM, RERUN, absent, printed
from classgap.recipes.tables.costs import with_costs
from classgap.recipes.tables.dbm import LDAM
from classgap.suites import Published, Suite, Task, Variant
from classgap.training.recipes import load_recipe

R50, RX50, INAT = "ImageNet-LT, ResNet-50", "ImageNet-LT, ResNeXt-50", "iNaturalist 2018"
INSIDE = {"base": "dbm", "base_params": {"variant": "bs", "s": 30.0, "k_m": 0.1}}
STAGES = {"τ-norm": "tau_norm", "cRT": "crt", "LWS": "lws", "DisAlign": "disalign"}
QUOTE = "quoted from another paper, with its settings"


def suite() -> Suite:
    imagenet = load_recipe("dbm_imagenet_lt")
    return with_costs(
        Suite(
            "dbm_large",
            tasks=(
                Task(R50, imagenet),
                Task(RX50, imagenet.override(["model=timm:resnext50_32x4d"])),
                Task(INAT, load_recipe("dbm_inat18")),
            ),
            variants=(
                ERM,
                RERUN,
                *(Variant(name, settings=(f"stage={stage}", *held_out(stage))) for name, stage in STAGES.items()),
                Variant("LDAM-DRW", "drw", {"base": "ldam", "base_params": LDAM}),
                Variant("CE-DRW", "drw"),
                Variant("BS", "balanced_softmax"),
                Variant("BCL", "bcl"),
                Variant("GML", "gml"),
                Variant("DBM-BCL", "bcl", INSIDE),
                Variant("DBM-GML", "gml", INSIDE),
            ),
            published=published(),
            about=(__doc__ or "").split("\n", 1)[0],
        )
    )


def held_out(stage: str) -> Sequence[str]:
    """τ is chosen on validation images, which iNaturalist does not have."""
    return ("data.val_fraction=0.1",) if stage == "tau_norm" else ()


GROUPS = ("many-shot", "medium-shot", "few-shot", "overall")
# ResNet-50 and ResNeXt-50; None where the paper has no number.
TABLE_3: dict[str, tuple[float | None, float | None]] = {
    ERM.name: (41.6, 44.4),
    "τ-norm": (46.7, 49.4),
    "cRT": (47.3, 49.6),
    "LWS": (47.7, 49.9),
    "LDAM-DRW": (49.8, None),
    "CE-DRW": (50.1, None),
    "BS": (50.9, None),
    "DisAlign": (52.9, 53.4),
    "BCL": (56.0, 56.7),
    "GML": (None, 58.3),
    "DBM-BCL": (56.3, 57.4),
    "DBM-GML": (57.4, 58.6),
}
TABLE_4: dict[str, tuple[float, ...]] = {
    ERM.name: (73.9, 63.5, 55.5, 61.0),
    "τ-norm": (65.6, 65.3, 65.9, 65.6),
    "cRT": (69.0, 66.0, 63.2, 65.2),
    "LWS": (65.0, 66.3, 65.5, 65.9),
    "LDAM-DRW": (66.1,),
    "CE-DRW": (68.2, 67.3, 66.4, 67.0),
    "BS": (65.5, 67.5, 67.5, 67.2),
    "DisAlign": (61.6, 70.8, 69.9, 69.5),
    "BCL": (68.2, 71.3, 71.3, 71.0),
    "GML": (70.7, 72.3, 71.5, 71.2),
    "DBM-BCL": (65.6, 71.8, 73.8, 71.9),
    "DBM-GML": (66.9, 71.9, 73.6, 72.0),
}
OTHERS_3 = (
    (R50, "ALA loss", "Table 3", 52.4),
    (RX50, "ALA loss", "Table 3", 53.3),
    (R50, "Difficulty-Net", "Table 3", 54.0),
    (R50, "RIDE, 3 experts", "Table 3", 54.9),
    (RX50, "RIDE, 3 experts", "Table 3", 56.4),
)
RIDE_4 = (70.2, 71.3, 71.7, 71.4)


def published() -> tuple[Published, ...]:
    rows: list[Published] = []
    for name, both in TABLE_3.items():
        note = "" if name.startswith("DBM") else QUOTE
        for task, value in zip((R50, RX50), both, strict=True):
            if value is not None:
                rows += printed(task, "Table 3", {name: value}, note=note)
    for name, row in TABLE_4.items():
        own = name.startswith("DBM") or name in ("BCL", "GML")
        metrics = GROUPS if len(row) == 4 else ("overall",)
        rows += printed(INAT, "Table 4", {name: row}, metrics, note="" if own else QUOTE)
    return (*rows, *(absent(*row) for row in OTHERS_3), absent(INAT, "RIDE, 2 experts", "Table 4", RIDE_4, GROUPS))
