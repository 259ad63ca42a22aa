"""Smooth iterated function systems: the chaos game, the smooth raster, and finding a system for a picture."""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING, Any

from .checks import Poisson
from .functional import chaos_game, smooth_raster
from .maps import area_weights, contraction, draw_addresses, draw_choices
from .modules import IFS
from .presets import PRESETS, Preset, residual_form

if TYPE_CHECKING:
    from algonet.fit import FitPlan, FitResult, Level, Search, fit_ifs, ssim

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


if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        """What `algonet.fit` defines, which stands on this package: loaded when first touched."""
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}", name=name, obj=sys.modules[__name__])
        return getattr(importlib.import_module("algonet.fit"), name)
