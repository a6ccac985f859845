"""Losses: ``loss = criterion(logits, target, features=phi)``. One family per file; every public class is exported here."""

from classgap.losses._adjust import (
    BalancedSoftmaxLoss,
    LADELoss,
    LogitAdjustedLoss,
    VSLoss,
    lade_regularizer,
    logit_adjusted_cross_entropy,
    vector_scaling_cross_entropy,
)
from classgap.losses._base import ClassLoss
from classgap.losses._basic import CrossEntropyLoss
from classgap.losses._cosine import (
    ArcFaceLoss,
    CosFaceLoss,
    LDAMLoss,
    SphereFaceLoss,
    arcface_cosine,
    cosine_margin_ce,
    ldam_margins,
    sphereface_cosine,
)
from classgap.losses._dbm import DBMLoss, dbm_cosine, dbm_margins
from classgap.losses._drw import DRWLoss
from classgap.losses._margin import EQLLoss, SeesawLoss, equalization_cross_entropy, margin_ce, seesaw_margins
from classgap.losses._mr2 import MR2Loss, gamma_margin_cross_entropy, margins_from_moments, representation_margin
from classgap.losses._pairs import within_class_pull
from classgap.losses._reweight import ClassBalancedLoss, FocalLoss, focal_cross_entropy, sigmoid_cross_entropy
from classgap.losses._robust import FairDROLoss, GroupDROLoss, chi_square_weights
from classgap.losses._weights import ClassWeightedLoss, effective_number_weights

__all__ = [
    "ArcFaceLoss",
    "BalancedSoftmaxLoss",
    "ClassBalancedLoss",
    "ClassLoss",
    "ClassWeightedLoss",
    "CosFaceLoss",
    "CrossEntropyLoss",
    "DBMLoss",
    "DRWLoss",
    "EQLLoss",
    "FairDROLoss",
    "FocalLoss",
    "GroupDROLoss",
    "LADELoss",
    "LDAMLoss",
    "LogitAdjustedLoss",
    "MR2Loss",
    "SeesawLoss",
    "SphereFaceLoss",
    "VSLoss",
    "arcface_cosine",
    "chi_square_weights",
    "cosine_margin_ce",
    "dbm_cosine",
    "dbm_margins",
    "effective_number_weights",
    "equalization_cross_entropy",
    "focal_cross_entropy",
    "gamma_margin_cross_entropy",
    "lade_regularizer",
    "ldam_margins",
    "logit_adjusted_cross_entropy",
    "margin_ce",
    "margins_from_moments",
    "representation_margin",
    "seesaw_margins",
    "sigmoid_cross_entropy",
    "sphereface_cosine",
    "vector_scaling_cross_entropy",
    "within_class_pull",
]
