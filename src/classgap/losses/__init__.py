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
from classgap.losses._bcl import BCLLoss, balanced_contrast
from classgap.losses._compact import (
    CenterLoss,
    GaussianMixtureLoss,
    RangeLoss,
    SpreadoutLoss,
    center_pull,
    half_squared_distances,
    range_terms,
    spreadout_penalty,
)
from classgap.losses._compact_logits import CompactLogitsLoss
from classgap.losses._composite import CompositeLoss
from classgap.losses._contrast import (
    DROLTLoss,
    SupConLoss,
    robust_centroid_contrast,
    supervised_contrast,
)
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
from classgap.losses._elm import ELMLoss, pull_slack
from classgap.losses._experts import (
    LearningFromFailureLoss,
    NCLLoss,
    generalized_cross_entropy_weight,
    hard_categories,
    mutual_distillation,
)
from classgap.losses._gml import GMLLoss, class_log_mean_exp, queue_sizes
from classgap.losses._information import (
    CMICLoss,
    ConfusionalSpectralLoss,
    concentration,
    confusion_direction,
    separation,
)
from classgap.losses._margin import EQLLoss, SeesawLoss, equalization_cross_entropy, margin_ce, seesaw_margins
from classgap.losses._mr2 import (
    MR2Loss,
    PublishedMR2Loss,
    gamma_margin_cross_entropy,
    margins_from_moments,
    representation_margin,
)
from classgap.losses._mr2_released import ReleasedMR2Loss, released_margins
from classgap.losses._pairs import within_class_pull
from classgap.losses._reweight import ClassBalancedLoss, FocalLoss, focal_cross_entropy, sigmoid_cross_entropy
from classgap.losses._robust import FairDROLoss, GroupDROLoss, chi_square_weights
from classgap.losses._scatter import within_class_scatter
from classgap.losses._squeeze import SqueezeLoss
from classgap.losses._weights import ClassWeightedLoss, effective_number_weights

__all__ = [
    "ArcFaceLoss",
    "BCLLoss",
    "BalancedSoftmaxLoss",
    "CMICLoss",
    "CenterLoss",
    "ClassBalancedLoss",
    "ClassLoss",
    "ClassWeightedLoss",
    "CompactLogitsLoss",
    "CompositeLoss",
    "ConfusionalSpectralLoss",
    "CosFaceLoss",
    "CrossEntropyLoss",
    "DBMLoss",
    "DROLTLoss",
    "DRWLoss",
    "ELMLoss",
    "EQLLoss",
    "FairDROLoss",
    "FocalLoss",
    "GMLLoss",
    "GaussianMixtureLoss",
    "GroupDROLoss",
    "LADELoss",
    "LDAMLoss",
    "LearningFromFailureLoss",
    "LogitAdjustedLoss",
    "MR2Loss",
    "NCLLoss",
    "PublishedMR2Loss",
    "RangeLoss",
    "ReleasedMR2Loss",
    "SeesawLoss",
    "SphereFaceLoss",
    "SpreadoutLoss",
    "SqueezeLoss",
    "SupConLoss",
    "VSLoss",
    "arcface_cosine",
    "balanced_contrast",
    "center_pull",
    "chi_square_weights",
    "class_log_mean_exp",
    "concentration",
    "confusion_direction",
    "cosine_margin_ce",
    "dbm_cosine",
    "dbm_margins",
    "effective_number_weights",
    "equalization_cross_entropy",
    "focal_cross_entropy",
    "gamma_margin_cross_entropy",
    "generalized_cross_entropy_weight",
    "half_squared_distances",
    "hard_categories",
    "lade_regularizer",
    "ldam_margins",
    "logit_adjusted_cross_entropy",
    "margin_ce",
    "margins_from_moments",
    "mutual_distillation",
    "pull_slack",
    "queue_sizes",
    "range_terms",
    "released_margins",
    "representation_margin",
    "robust_centroid_contrast",
    "seesaw_margins",
    "separation",
    "sigmoid_cross_entropy",
    "sphereface_cosine",
    "spreadout_penalty",
    "supervised_contrast",
    "vector_scaling_cross_entropy",
    "within_class_pull",
    "within_class_scatter",
]
