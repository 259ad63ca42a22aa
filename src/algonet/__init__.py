"""algonet: smooth algorithmic layers for PyTorch.

Classic algorithms whose crisp decisions (if, while, sort, max, which pixel, which triangle in front) are smooth, so
that gradients flow through the decisions themselves. The most used names are here, loaded when first touched.
"""

from __future__ import annotations

import importlib
from typing import Any

__version__ = "0.2.0"

#: The module that defines each public name.
_NAMES: dict[str, tuple[str, ...]] = {
    "algonet.relax": (
        "Anneal",
        "BoundedSum",
        "BumpExit",
        "Cauchy",
        "Gaussian",
        "GaussianNoise",
        "Heaviside",
        "Logistic",
        "Optimal",
        "Probabilistic",
        "Sech",
        "SmoothStep",
        "SmoothTent",
        "StudentT",
        "Tent",
        "soft_argmax",
        "soft_argmin",
        "soft_max",
        "soft_min",
        "softness_report",
        "weighted_softmax",
        "weighted_softmin",
    ),
    "algonet.nn": ("FiniteDifferences", "Insert", "Residual", "Shortcut", "WeightedSoftmax", "WeightedSoftmin"),
    "algonet.while_lang": ("WhileProgram",),
    "algonet.smooth_python": ("smooth", "softness"),
    "algonet.sorting": (
        "Bitonic",
        "OddEven",
        "SoftMedian",
        "SoftSort",
        "soft_argsort",
        "soft_median",
        "soft_quantile",
        "soft_rank",
        "soft_sort",
        "soft_topk",
    ),
    "algonet.ifs": ("IFS", "chaos_game", "fit_ifs", "smooth_raster"),
    "algonet.render": (
        "Camera",
        "FilteredCoverage",
        "Mesh",
        "SmoothRenderer",
        "fit_camera",
        "fit_mesh",
        "icosphere",
        "render_attributes",
    ),
    "algonet.ran": ("RAN", "RANTrainer"),
    "algonet.explain": ("activation", "replace_gradually", "sensitivity"),
}
_HOMES = {name: home for home, names in _NAMES.items() for name in names}

__all__ = [*sorted(_HOMES), "__version__"]  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'algonet' has no attribute {name!r}")
    value = getattr(importlib.import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
