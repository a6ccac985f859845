"""Every method with its default settings on the same features: balanced, and with long tails of 10 and of 100.

    classgap bench benchmarks/evidence/field.py --workers 2
Cost: 5 to 30 seconds per run on one core.
"""

from __future__ import annotations

from evidence_common import (
    CENTER,
    COMPACT,
    CONSTANT,
    DATA,
    ERM,
    FOCAL,
    GROUP_DRO,
    LDAM,
    RERUN,
    SAM,
    SEEDS,
    SMOOTHING,
    margin_only,
    only_on,
)

from classgap.suites import Suite, Task, Variant
from classgap.training import TrainConfig

TAILS = ("tail*",)


def suite() -> Suite:
    base = TrainConfig().override(
        [
            "data=npz:cifar100_effnetlite0_pca256.npz",
            "data.augment=none",
            "model=mlp-512",
            "optim.lr=0.05",
            "epochs=30",
            "batch=128",
        ]
    )
    tail = base.override(["data.per_class=400", "data.profile=exponential"])
    return Suite(
        "field",
        tasks=(
            Task("balanced", base.override(["data.per_class=100"]), "CIFAR-100 embeddings, 90 samples per class"),
            Task("tail 10", tail.override(["data.imbalance=10"]), "400 to 40 samples per class"),
            Task("tail 100", tail.override(["data.imbalance=100"]), "400 to 4 samples per class"),
        ),
        variants=(ERM, RERUN, COMPACT, *only_on(("balanced",), CONSTANT), *ANYWHERE, *FOR_TAILS),
        seeds=SEEDS,
        about=__doc__.split("\n", 1)[0],
        data=DATA,
    )


def stage(name: str) -> Variant:
    return Variant(f"{name} stage", settings=(f"stage={name}",))


ANYWHERE = (
    SMOOTHING,
    FOCAL,
    LDAM,
    CENTER,
    GROUP_DRO,
    SAM,
    Variant("adaptive SAM", settings=("wrapper=asam",)),
    Variant("mixup", settings=("mix=mixup",)),
    Variant("FairDRO", "fair_dro"),
    Variant("FairDRO, project=False", "fair_dro", {"project": False}, note="class weights may be negative"),
    Variant("LfF", "lff"),
    Variant("JTT", settings=("stage=jtt",)),
    Variant("SupCon, weight 1", "supcon"),
    Variant("SupCon, weight 0.1", "supcon", {"weight": 0.1}),
    Variant("CosFace", "cosface"),
    Variant("ArcFace", "arcface"),
    Variant("SphereFace", "sphereface"),
    Variant("L-GM", "lgm"),
    Variant("range loss", "range"),
    Variant("spreadout", "spreadout"),
    Variant("DRO-LT", "dro_lt"),
    Variant("CMIC", "cmic"),
    Variant("CSR", "csr"),
    Variant("ELM", "elm"),
    Variant("DBM", "dbm"),
    Variant("NCL", "ncl"),
    stage("crt"),
    stage("lws"),
    stage("marc"),
    Variant(
        "marc stage, ridge 0.1",
        settings=("stage=marc", "stage.normalize=weights", "stage.ridge=0.1", "stage.steps=none"),
        note="solved exactly instead of by SGD",
    ),
    Variant(
        "marc stage, exact minimum",
        settings=("stage=marc", "stage.steps=none"),
        note="eq. 11 solved to the end on training scores",
    ),
    stage("tau_norm"),
    stage("disalign"),
)
# With equal class counts most of these are cross-entropy.
FOR_TAILS = only_on(
    TAILS,
    *(
        Variant(name, method, params, settings=settings)
        for name, method, params, settings in (
            ("logit adjustment", "logit_adjusted", {}, ()),
            ("balanced softmax", "balanced_softmax", {}, ()),
            ("LADE", "lade", {}, ()),
            ("VS", "vs", {}, ()),
            ("class-balanced", "class_balanced", {}, ()),
            ("class-balanced focal", "class_balanced", {"kind": "focal_softmax"}, ()),
            ("EQL", "eql", {}, ()),
            ("Seesaw", "seesaw", {}, ()),
            ("BCL", "bcl", {}, ()),
            ("GML", "gml", {}, ()),
            ("DRW", "drw", {}, ()),
            ("LDAM + DRW", "drw", {"base": "ldam"}, ()),
            ("DBM + balanced softmax", "dbm", {"variant": "bs"}, ()),
            ("DBM + DRW", "drw", {"base": "dbm"}, ()),
            ("class-balanced sampling", "cross_entropy", {}, ("sampler=class_balanced",)),
            ("square-root sampling", "cross_entropy", {}, ("sampler=square_root",)),
            ("compact logits without LA", "compact_logits", {"tau": 0.0}, ()),
        )
    ),
    margin_only("LA, uniform temperature 2", 2.0, margins="uniform"),
)
