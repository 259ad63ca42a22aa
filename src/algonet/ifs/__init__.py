"""Smooth iterated function systems: the chaos game, the smooth raster, and finding a system for a picture."""

from .aggregates import Poisson
from .choices import draw_addresses, draw_choices
from .fitting import FitPlan, FitResult, fit_ifs
from .functional import chaos_game, smooth_raster
from .maps import area_weights, contraction
from .metrics import ssim
from .modules import IFS
from .presets import PRESETS, Preset, residual_form
from .refine import Level
from .search import Search

__all__ = [
    "IFS",
    "PRESETS",
    "FitPlan",
    "FitResult",
    "Level",
    "Poisson",
    "Preset",
    "Search",
    "area_weights",
    "chaos_game",
    "contraction",
    "draw_addresses",
    "draw_choices",
    "fit_ifs",
    "residual_form",
    "smooth_raster",
    "ssim",
]
