"""Losses: ``loss = criterion(logits, target, features=phi)``. One loss, or one closely related family, per file.

The functions behind a loss are in its module: ``from classgap.losses.focal import focal_cross_entropy``. Exported here are the
loss classes and the functions that the method cards refer to.
"""

from classgap.losses.arcface import ArcFaceLoss, CosFaceLoss, SphereFaceLoss
from classgap.losses.balanced_softmax import BalancedSoftmaxLoss
from classgap.losses.base import ClassLoss
from classgap.losses.batch import LossBatch
from classgap.losses.bcl import BCLLoss
from classgap.losses.center import CenterLoss
from classgap.losses.class_balanced import ClassBalancedLoss
from classgap.losses.class_weights import ClassWeightedLoss, effective_number_weights
from classgap.losses.cmic import CMICLoss
from classgap.losses.compact_logits import CompactLogitsLoss
from classgap.losses.cross_entropy import CrossEntropyLoss
from classgap.losses.csr import ConfusionalSpectralLoss, confusion_direction
from classgap.losses.dbm import DBMLoss
from classgap.losses.distillation import DistillationLoss
from classgap.losses.dro_lt import DROLTLoss
from classgap.losses.drw import DRWLoss
from classgap.losses.elm import ELMLoss, pull_slack
from classgap.losses.eql import EQLLoss
from classgap.losses.fair_dro import FairDROLoss
from classgap.losses.focal import FocalLoss
from classgap.losses.gaussian_mixture import GaussianMixtureLoss
from classgap.losses.gml import GMLLoss
from classgap.losses.group_dro import GroupDROLoss
from classgap.losses.lade import LADELoss, lade_regularizer
from classgap.losses.ldam import LDAMLoss
from classgap.losses.lff import LearningFromFailureLoss
from classgap.losses.logit_adjusted import LogitAdjustedLoss
from classgap.losses.mr2 import MR2Loss, PublishedMR2Loss, gamma_margin_cross_entropy, representation_margin
from classgap.losses.mr2_released import ReleasedMR2Loss
from classgap.losses.ncl import NCLLoss
from classgap.losses.options import LossOptions
from classgap.losses.pair_pull import within_class_pull
from classgap.losses.range_loss import RangeLoss
from classgap.losses.seesaw import SeesawLoss
from classgap.losses.spreadout import SpreadoutLoss, spreadout_penalty
from classgap.losses.squeeze import SqueezeLoss
from classgap.losses.supcon import SupConLoss
from classgap.losses.vs import VSLoss
from classgap.losses.wrapper import WrapperLoss

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
    "ConfusionalSpectralLoss",
    "CosFaceLoss",
    "CrossEntropyLoss",
    "DBMLoss",
    "DROLTLoss",
    "DRWLoss",
    "DistillationLoss",
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
    "LossBatch",
    "LossOptions",
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
    "WrapperLoss",
    "confusion_direction",
    "effective_number_weights",
    "gamma_margin_cross_entropy",
    "lade_regularizer",
    "pull_slack",
    "representation_margin",
    "spreadout_penalty",
    "within_class_pull",
]
