"""ELM on long-tailed CIFAR (Table 2): margins between logits and inside classes.

    classgap bench benchmarks/papers/elm.py
Settings as published: 256 epochs of SGD from a rate of 0.4, crop and flip; for a GPU. Weight normalisation, which needs no
training, is `classgap fix` on a run of cross-entropy.
"""

from __future__ import annotations

from papers_common import ERM, RERUN, tail

from classgap.bench import Suite, Variant

SCHEDULE = ("schedule=step", "schedule.warmup=15", "schedule.milestones=96,192,224", "schedule.gamma=0.1")
RECIPE = ("epochs=256", "optim.lr=0.4", "optim.weight_decay=1e-4", *SCHEDULE)


def suite() -> Suite:
    return Suite(
        "elm",
        tasks=tuple(tail(data, 100, *RECIPE) for data in ("cifar10", "cifar100")),
        variants=(
            ERM,
            RERUN,
            Variant("CB focal", "class_balanced", {"kind": "focal_sigmoid"}),
            Variant("LDAM + DRW", "drw", {"base": "ldam"}),
            Variant("logit adjustment", "logit_adjusted"),
            Variant(
                "DRO-LT, one stage", "dro_lt", {"rule": "count", "form": "elm"}, note="as the paper writes it, eq. 5"
            ),
            Variant(
                "DRO-LT, three stages",
                "dro_lt",
                {"weight": 1.0, "centroids": "epoch"},
                settings=("stage=three_stage",),
                note="weight and centroids of the authors' code",
            ),
            Variant("ELM, α=π", "elm", {"alpha": "prior"}, tasks=("CIFAR-10-LT*",), note="published for this data set"),
            Variant("ELM, α=√n", "elm", tasks=("CIFAR-100-LT*",), note="published for this data set"),
            Variant("ELM, α=n", "elm", {"alpha": "count"}, note="what the appendix calls a good choice throughout"),
        ),
        about=__doc__.split("\n", 1)[0],
    )
