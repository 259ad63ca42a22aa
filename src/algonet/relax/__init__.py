"""How a crisp decision becomes smooth: one vocabulary of softness for the whole library.

Decisions have a `steepness` (larger is harder), positions have noise with a `scale` (smaller is harder).
"""

from algonet.core.hints import SoftnessWarning

from .base import Relaxation
from .conorms import (
    CONORMS,
    AczelAlsina,
    BoundedSum,
    Dombi,
    Einstein,
    Frank,
    Hamacher,
    Maximum,
    Probabilistic,
    SchweizerSklar,
    TConorm,
    Yager,
)
from .exits import EXITS, BumpExit, Exit, Sech, SmoothTent, Tent
from .modules import SoftModule, hardened
from .noise import NOISES, GaussianNoise, Noise, StudentT
from .report import SoftnessReport, softness_report
from .schedule import Anneal
from .sigmoids import (
    DECISION,
    SIGMOIDS,
    Bump,
    Cauchy,
    Gaussian,
    Gudermannian,
    GumbelMax,
    GumbelMin,
    Heaviside,
    Laplace,
    Logistic,
    Optimal,
    Reciprocal,
    Relative,
    Sigmoid,
    SmoothStep,
)
from .softmax import Choice, soft_argmax, soft_argmin, soft_max, soft_min, weighted_softmax, weighted_softmin

__all__ = [
    "CONORMS",
    "DECISION",
    "EXITS",
    "NOISES",
    "SIGMOIDS",
    "AczelAlsina",
    "Anneal",
    "BoundedSum",
    "Bump",
    "BumpExit",
    "Cauchy",
    "Choice",
    "Dombi",
    "Einstein",
    "Exit",
    "Frank",
    "Gaussian",
    "GaussianNoise",
    "Gudermannian",
    "GumbelMax",
    "GumbelMin",
    "Hamacher",
    "Heaviside",
    "Laplace",
    "Logistic",
    "Maximum",
    "Noise",
    "Optimal",
    "Probabilistic",
    "Reciprocal",
    "Relative",
    "Relaxation",
    "SchweizerSklar",
    "Sech",
    "Sigmoid",
    "SmoothStep",
    "SmoothTent",
    "SoftModule",
    "SoftnessReport",
    "SoftnessWarning",
    "StudentT",
    "TConorm",
    "Tent",
    "Yager",
    "hardened",
    "soft_argmax",
    "soft_argmin",
    "soft_max",
    "soft_min",
    "softness_report",
    "weighted_softmax",
    "weighted_softmin",
]
