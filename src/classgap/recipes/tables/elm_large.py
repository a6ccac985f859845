"""ELM on ImageNet-LT and iNaturalist 2018 (Table 2, with the settings of Table 3).

    classgap bench elm_large --tables-only                      # the published numbers, and what has been run
    classgap bench elm_large --only "ImageNet-LT/*" --set data.root=DIR
Settings as published, from the recipes elm_imagenet_lt and elm_inat18; for several GPUs. Numbers of some rows are quoted by the
paper from those of the methods, with their settings. Fig. 2 has accuracies by frequency, only in the picture.
"""

from __future__ import annotations

from classgap.recipes.tables.common import ERM, printed_by_task
from classgap.recipes.tables.costs import with_costs
from classgap.recipes.tables.elm import BASELINES, BY_COUNT
from classgap.suites import Suite, Task, Variant
from classgap.training.recipes import load_recipe

IMAGENET, INAT = "ImageNet-LT", "iNaturalist 2018"
QUOTE = "quoted from the method's own paper, with its settings"


def suite() -> Suite:
    return with_costs(
        Suite(
            "elm_large",
            tasks=(Task(IMAGENET, load_recipe("elm_imagenet_lt")), Task(INAT, load_recipe("elm_inat18"))),
            variants=(
                *BASELINES,
                Variant(
                    "ELM, α=10√π", "elm", {"alpha": "sqrt_prior", "alpha_scale": 10.0, "lam": 0.001}, tasks=(IMAGENET,)
                ),
                Variant("ELM, α=√n", "elm", {"lam": 0.01}, tasks=(INAT,)),
                BY_COUNT,
            ),
            published=(
                *printed_by_task("Table 2", (IMAGENET, INAT), TABLE_2),
                *printed_by_task("Table 2", (INAT,), {name: row[1:] for name, row in QUOTED.items()}, note=QUOTE),
                *printed_by_task("Table 2", (IMAGENET,), {name: row[:1] for name, row in QUOTED.items()}),
                *printed_by_task("Table 2", (IMAGENET, INAT), {"DRO-LT, three stages": (53.00, 69.70)}, note=QUOTE),
                *printed_by_task("Table 2", (IMAGENET,), {"ELM, α=10√π": (50.60,)}),
                *printed_by_task("Table 2", (INAT,), {"ELM, α=√n": (68.71,)}),
            ),
            about=(__doc__ or "").split("\n", 1)[0],
        )
    )


TABLE_2 = {
    ERM.name: (45.20, 61.34),
    "logit adjustment": (50.37, 66.36),
    "DRO-LT, one stage": (45.70, 62.05),
}
QUOTED = {"CB focal": (46.79, 64.16), "LDAM + DRW": (50.15, 68.00), "weight normalisation": (50.63, 65.60)}
