"""ELM on long-tailed CIFAR (Table 2, with the settings of Table 3): margins between logits and inside classes.

    classgap bench elm --tables-only            # the published numbers, and what has been run
Settings as published: 256 epochs of SGD from a rate of 0.4 with 15 epochs of warm-up, a tenth of the rate after 96, 192 and 224,
batches of 128, weight decay 1e-4, crop and flip; for a GPU. The paper sums the pull over all samples of a class, training over
those of the batch. The weight of DRO-LT is not stated, nor the values of λ in Fig. 7, which are only in the picture. For the two
moons of Fig. 1 see `examples/two_moons.py`.
"""

from __future__ import annotations

from classgap.recipes.tables.common import ERM, RERUN, printed_by_task, tail
from classgap.recipes.tables.costs import with_costs
from classgap.suites import Suite, Variant

SCHEDULE = ("schedule=step", "schedule.warmup=15", "schedule.milestones=96,192,224", "schedule.gamma=0.1")
RECIPE = ("epochs=256", "batch=128", "optim.lr=0.4", "optim.weight_decay=1e-4", *SCHEDULE)
TEN, HUNDRED = "CIFAR-10-LT 100", "CIFAR-100-LT 100"
LAMBDAS = (0.0001, 0.001, 0.1, 1.0)
TAU = "τ-norm after cross-entropy; the paper does not say how it chose τ, here it is chosen on a tenth of the training images"
BASELINES = (
    ERM,
    RERUN,
    Variant("CB focal", "class_balanced", {"kind": "focal_sigmoid"}),
    Variant("LDAM + DRW", "drw", {"base": "ldam"}),
    Variant("logit adjustment", "logit_adjusted"),
    Variant(
        "DRO-LT, one stage",
        "dro_lt",
        {"rule": "count", "form": "elm"},
        note="as the paper writes it, eq. 5",
    ),
    Variant("weight normalisation", settings=("stage=tau_norm", "data.val_fraction=0.1"), note=TAU),
    Variant(
        "DRO-LT, three stages",
        "dro_lt",
        {"weight": 1.0, "centroids": "epoch"},
        settings=("stage=three_stage",),
        note="weight and centroids of the authors' code",
    ),
)
BY_COUNT = Variant("ELM, α=n", "elm", {"alpha": "count", "lam": 0.01}, note="the appendix: good on many data sets")


def suite() -> Suite:
    return with_costs(
        Suite(
            "elm",
            tasks=tuple(tail(data, 100, *RECIPE) for data in ("cifar10", "cifar100")),
            variants=(
                *BASELINES,
                Variant(
                    "ELM, α=π", "elm", {"alpha": "prior", "lam": 0.01}, tasks=(TEN,), note="published for this data set"
                ),
                Variant("ELM, α=√n", "elm", {"lam": 0.01}, tasks=(HUNDRED,), note="published for this data set"),
                BY_COUNT,
                *(
                    Variant(f"ELM, α=√n, λ={lam:g}", "elm", {"lam": lam}, tasks=(HUNDRED,), note="Fig. 7")
                    for lam in LAMBDAS
                ),
            ),
            published=(
                *printed_by_task("Table 2", (TEN, HUNDRED), TABLE_2),
                *printed_by_task(
                    "Table 2", (TEN, HUNDRED), QUOTED, note="quoted from the method's own paper, with its settings"
                ),
                *printed_by_task("Table 2", (TEN,), {"ELM, α=π": (77.95,)}),
                *printed_by_task("Table 2", (HUNDRED,), {"ELM, α=√n": (45.77,)}),
            ),
            about=__doc__.split("\n", 1)[0],
        )
    )


TABLE_2 = {
    ERM.name: (72.84, 38.36),
    "logit adjustment": (77.67, 43.89),
    "DRO-LT, one stage": (72.70, 41.98),
    "weight normalisation": (78.50, 41.34),
}
QUOTED = {
    "CB focal": (74.57, 39.60),
    "LDAM + DRW": (77.03, 42.04),
    "DRO-LT, three stages": (80.50, 46.92),
}
