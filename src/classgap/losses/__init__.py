"""Losses: ``loss = criterion(logits, target, features=phi)``. One family per file; every public class is exported here."""

from classgap.losses.base import ClassLoss
from classgap.losses.bcl import BCLLoss, balanced_contrast
from classgap.losses.class_weights import ClassWeightedLoss, effective_number_weights
from classgap.losses.compact_features import (
    CenterLoss,
    GaussianMixtureLoss,
    RangeLoss,
    SpreadoutLoss,
    center_pull,
    half_squared_distances,
    range_terms,
    spreadout_penalty,
)
from classgap.losses.compact_logits import CompactLogitsLoss
from classgap.losses.composite import CompositeLoss
from classgap.losses.contrastive import DROLTLoss, SupConLoss, robust_centroid_contrast, supervised_contrast
from classgap.losses.cosine_margins import (
    ArcFaceLoss,
    CosFaceLoss,
    LDAMLoss,
    SphereFaceLoss,
    arcface_cosine,
    cosine_margin_ce,
    ldam_margins,
    sphereface_cosine,
)
from classgap.losses.cross_entropy import CrossEntropyLoss
from classgap.losses.dbm import DBMLoss, dbm_cosine, dbm_margins
from classgap.losses.drw import DRWLoss
from classgap.losses.elm import ELMLoss, pull_slack
from classgap.losses.experts import (
    LearningFromFailureLoss,
    NCLLoss,
    generalized_cross_entropy_weight,
    hard_categories,
    mutual_distillation,
)
from classgap.losses.gml import GMLLoss, class_log_mean_exp, queue_sizes
from classgap.losses.information import (
    CMICLoss,
    ConfusionalSpectralLoss,
    concentration,
    confusion_direction,
    separation,
)
from classgap.losses.logit_adjustment import (
    BalancedSoftmaxLoss,
    LADELoss,
    LogitAdjustedLoss,
    VSLoss,
    lade_regularizer,
    logit_adjusted_cross_entropy,
    vector_scaling_cross_entropy,
)
from classgap.losses.logit_margins import EQLLoss, SeesawLoss, equalization_cross_entropy, margin_ce, seesaw_margins
from classgap.losses.mr2 import (
    MR2Loss,
    PublishedMR2Loss,
    gamma_margin_cross_entropy,
    margins_from_moments,
    representation_margin,
)
from classgap.losses.mr2_released import ReleasedMR2Loss, released_margins
from classgap.losses.pairs import within_class_pull
from classgap.losses.reweighting import ClassBalancedLoss, FocalLoss, focal_cross_entropy, sigmoid_cross_entropy
from classgap.losses.robust import FairDROLoss, GroupDROLoss, chi_square_weights
from classgap.losses.scatter import within_class_scatter
from classgap.losses.squeeze import SqueezeLoss

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
