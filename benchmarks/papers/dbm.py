"""DBM on long-tailed CIFAR (Table 2) inside every method it is combined with, and its components (Table 5).

    classgap bench benchmarks/papers/dbm.py --only "CIFAR-100-LT 100/*"
Settings as published: 200 epochs (NCL 400) of SGD with a cosine, AutoAugment and Cutout; for a GPU. K_m is 0.1 throughout, where
the paper tunes it between 0.1 and 0.3. The teacher of GML has the student's size; for the paper's ResNet-56 train one with
`method=dbm method.variant=bs method.k_m=0` and add `teacher=FOLDER` to the settings.
"""

from __future__ import annotations

from papers_common import ERM, RERUN, tail

from classgap.bench import Suite, Variant

AUGMENT = "data.augment=crop,flip,autoaugment,cutout"
RECIPE = ("epochs=200", "batch=64", "optim.lr=0.1", "optim.weight_decay=2e-4", "schedule.warmup=5", AUGMENT)
ANALYSED = ("CIFAR-100-LT 100",)
FURTHER = {"bcl": ("optim.lr=0.15", "batch=256"), "gml": (), "ncl": ("epochs=400",)}
INSIDE = {"base": "dbm", "base_params": {"variant": "bs"}}


def suite() -> Suite:
    pairs = [(Variant(m.upper(), m, settings=s), Variant(f"DBM-{m.upper()}", m, INSIDE, s)) for m, s in FURTHER.items()]
    return Suite(
        "dbm",
        tasks=tuple(tail(data, imbalance, *RECIPE) for data in ("cifar10", "cifar100") for imbalance in (100, 50, 10)),
        variants=(
            ERM,
            RERUN,
            Variant("DBM-CE", "dbm"),
            Variant("CE-DRW", "drw"),
            Variant("DBM-DRW", "drw", {"base": "dbm"}),
            Variant("BS", "balanced_softmax"),
            Variant("DBM-BS", "dbm", {"variant": "bs"}),
            *(variant for pair in pairs for variant in pair),
            *(component(v, name, **params) for v in ("ce", "bs") for name, params in COMPONENTS.items()),
        ),
        about=__doc__.split("\n", 1)[0],
    )


COMPONENTS: dict[str, dict[str, object]] = {
    "cosine head": {"k_m": 0.0},
    "class margin": {"instance": "none"},
    "margins of all samples": {"instance": "all"},
}


def component(variant: str, name: str, **params: object) -> Variant:
    return Variant(f"{variant.upper()}, {name}", "dbm", {"variant": variant, **params}, tasks=ANALYSED)
