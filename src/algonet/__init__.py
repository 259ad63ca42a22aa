"""algonet: smooth algorithmic layers for PyTorch.

Classic algorithms whose crisp decisions (if, while, sort, max, which pixel, which triangle in front) are smooth, so
that gradients flow through the decisions themselves. The most used names are here, loaded when first touched.
"""

from __future__ import annotations

import importlib
from typing import Any

__version__ = "0.1.0"

#: Public name -> the module that defines it.
_HOMES: dict[str, str] = {
    **dict.fromkeys(
        (
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
        "algonet.relax",
    ),
    **dict.fromkeys(
        ("FiniteDifferences", "Insert", "Residual", "Shortcut", "WeightedSoftmax", "WeightedSoftmin"), "algonet.nn"
    ),
}

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
