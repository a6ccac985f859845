"""MR² on CIFAR: its comparison (Table 1a), networks (2a), components (3), norms (8), long tail (7) and a tenth of CIFAR-10 (14).

    classgap bench benchmarks/papers/mr2.py --only "ResNet-32/*"
Settings as published: 300 epochs of SGD with a cosine, crop and flip; for a GPU. Weights of the compared methods are not
published; these are the defaults.
"""

from __future__ import annotations

from papers_common import ERM, RERUN, tail, task

from classgap.bench import Suite, Variant

RECIPE = ("epochs=300", "optim.lr=0.1", "optim.weight_decay=5e-4")
COMPARED = ("ResNet-32",)
NETWORKS = {"ResNet-32": "resnet32", "ResNet-20": "resnet20", "PreAct-20": "preact20", "PreAct-32": "preact32"}
NETWORKS |= {"WRN-22-10": "wrn-22-10"}
PAPER = {"form": "paper", "c_bar": 2.0, "lam": 0.5}


def compared(name: str, method: str = "cross_entropy", *settings: str, note: str = "", **params: object) -> Variant:
    return Variant(name, method, params, settings, tasks=COMPARED, note=note)


def suite() -> Suite:
    networks = (task(name, "cifar100", "CIFAR-100", *RECIPE, f"model={model}") for name, model in NETWORKS.items())
    few = task("CIFAR-10, a tenth", "cifar10", "500 images a class", *RECIPE, "data.per_class=500")
    return Suite(
        "mr2",
        tasks=(*networks, tail("cifar100", 100, *RECIPE), few),
        variants=(
            ERM,
            RERUN,
            Variant("MR² as in the paper", "mr2", PAPER, note="eq. 1 and 2 with c̄=2, λ=0.5"),
            Variant(
                "MR² as released",
                "mr2",
                {"form": "release", "c_bar": 1.0, "lam": 0.1},
                note="scaled as the authors' code",
            ),
            Variant("MR² (default)", "mr2"),
            Variant("logit adjustment", "logit_adjusted", tasks=("CIFAR-100-LT*",)),
            compared("LfF", "lff"),
            compared("JTT", "cross_entropy", "stage=jtt"),
            compared(
                "EQL", "eql", form="delta", note="as the paper writes it: a margin π_j, alike for all classes here"
            ),
            compared("LDAM", "ldam"),
            compared("LGM", "lgm"),
            compared("CMIC-DL", "cmic"),
            compared("SAM", "cross_entropy", "wrapper=sam"),
            compared("DFL", "center"),
            compared("SupCon", "supcon"),
            compared("DRL", "dro_lt"),
            compared("CSR", "csr"),
            compared(
                "DRO",
                "group_dro",
                strict=True,
                note="the authors' code with classes as groups: a class absent from the batch counts as loss 0; "
                "its step size 0.01, MR² gives none",
            ),
            compared(
                "FairDRO",
                "fair_dro",
                update="epoch",
                project=False,
                note="the authors' weights, by epoch and of either sign, over all classes; "
                "the default radius 0.5 of their code, MR² gives none",
            ),
            compared("(b) uniform γ", "mr2", gamma_rule="uniform", c_bar=2.0, lam=0.0),
            compared("(c) γ alone", "mr2", c_bar=2.0, lam=0.0),
            compared("(d) pull to a point", "mr2", **{**PAPER, "gamma_rule": "uniform", "c_bar": 1.0}, spread="zero"),
            compared("(e) pull alone", "mr2", **{**PAPER, "gamma_rule": "uniform", "c_bar": 1.0}),
            *(compared(f"MR² as in the paper, p={p}", "mr2", **PAPER, p=p) for p in (1, 3, 5, 7, 9)),
        ),
        about=__doc__.split("\n", 1)[0],
    )
