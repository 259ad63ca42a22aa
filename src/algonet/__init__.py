"""algonet: smooth algorithmic layers for PyTorch.

Classic algorithms whose crisp decisions (if, while, sort, max, which pixel, which triangle in front) are smooth, so
that gradients flow through the decisions themselves. The most used names are here, loaded when first touched.
"""

from __future__ import annotations

# ruff: isort: skip_file

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # what editors and type checkers see; at run time names load when first touched
    from algonet.explain import (
        activation as activation,
        replace_gradually as replace_gradually,
        sensitivity as sensitivity,
    )
    from algonet.fit import (
        fit_camera as fit_camera,
        fit_ifs as fit_ifs,
        fit_mesh as fit_mesh,
    )
    from algonet.ifs import (
        IFS as IFS,
        chaos_game as chaos_game,
        smooth_raster as smooth_raster,
    )
    from algonet.nn import (
        FiniteDifferences as FiniteDifferences,
        Insert as Insert,
        Residual as Residual,
        Shortcut as Shortcut,
        SmoothDepth as SmoothDepth,
        SmoothGraph as SmoothGraph,
        Trainable as Trainable,
        WeightedSoftmax as WeightedSoftmax,
        WeightedSoftmin as WeightedSoftmin,
    )
    from algonet.ran import (
        RAN as RAN,
        IFSInverse as IFSInverse,
        RANTrainer as RANTrainer,
        RenderInverse as RenderInverse,
    )
    from algonet.relax import (
        Anneal as Anneal,
        BoundedSum as BoundedSum,
        BumpExit as BumpExit,
        Cauchy as Cauchy,
        Gaussian as Gaussian,
        GaussianNoise as GaussianNoise,
        Heaviside as Heaviside,
        Logistic as Logistic,
        Optimal as Optimal,
        Probabilistic as Probabilistic,
        Sech as Sech,
        SmoothStep as SmoothStep,
        SmoothTent as SmoothTent,
        StudentT as StudentT,
        Tent as Tent,
        soft_argmax as soft_argmax,
        soft_argmin as soft_argmin,
        soft_max as soft_max,
        soft_min as soft_min,
        softness_report as softness_report,
        weighted_softmax as weighted_softmax,
        weighted_softmin as weighted_softmin,
    )
    from algonet.render import (
        Camera as Camera,
        FilteredCoverage as FilteredCoverage,
        Mesh as Mesh,
        SmoothRenderer as SmoothRenderer,
        icosphere as icosphere,
        render_attributes as render_attributes,
    )
    from algonet.smooth_python import (
        smooth as smooth,
        softness as softness,
    )
    from algonet.sorting import (
        Bitonic as Bitonic,
        OddEven as OddEven,
        SoftArgsort as SoftArgsort,
        SoftMedian as SoftMedian,
        SoftQuantile as SoftQuantile,
        SoftRank as SoftRank,
        SoftSort as SoftSort,
        SoftTopK as SoftTopK,
        SoftTopKMask as SoftTopKMask,
        soft_argsort as soft_argsort,
        soft_median as soft_median,
        soft_quantile as soft_quantile,
        soft_rank as soft_rank,
        soft_sort as soft_sort,
        soft_topk as soft_topk,
        soft_topk_mask as soft_topk_mask,
        which_method as which_method,
    )
    from algonet.speech import (
        SmoothSynthesizer as SmoothSynthesizer,
    )
    from algonet.while_lang import (
        Programs as Programs,
        WhileProgram as WhileProgram,
    )

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
    "algonet.nn": (
        "FiniteDifferences",
        "Insert",
        "Residual",
        "Shortcut",
        "SmoothDepth",
        "SmoothGraph",
        "Trainable",
        "WeightedSoftmax",
        "WeightedSoftmin",
    ),
    "algonet.while_lang": ("Programs", "WhileProgram"),
    "algonet.smooth_python": ("smooth", "softness"),
    "algonet.sorting": (
        "Bitonic",
        "OddEven",
        "SoftArgsort",
        "SoftMedian",
        "SoftQuantile",
        "SoftRank",
        "SoftSort",
        "SoftTopK",
        "SoftTopKMask",
        "soft_argsort",
        "soft_median",
        "soft_quantile",
        "soft_rank",
        "soft_sort",
        "soft_topk",
        "soft_topk_mask",
        "which_method",
    ),
    "algonet.fit": ("fit_camera", "fit_ifs", "fit_mesh"),
    "algonet.ifs": ("IFS", "chaos_game", "smooth_raster"),
    "algonet.render": (
        "Camera",
        "FilteredCoverage",
        "Mesh",
        "SmoothRenderer",
        "icosphere",
        "render_attributes",
    ),
    "algonet.speech": ("SmoothSynthesizer",),
    "algonet.ran": ("IFSInverse", "RAN", "RANTrainer", "RenderInverse"),
    "algonet.explain": ("activation", "replace_gradually", "sensitivity"),
}
_HOMES = {name: home for home, names in _NAMES.items() for name in names}

__all__ = [*sorted(_HOMES), "__version__"]  # pyright: ignore[reportUnsupportedDunderAll]


if not TYPE_CHECKING:  # or every misspelt name would have a type

    def __getattr__(name: str) -> Any:
        home = _HOMES.get(name)
        if f"algonet.{name}" in _NAMES:
            return importlib.import_module(f"algonet.{name}")
        if home is None:
            import difflib

            close = difflib.get_close_matches(name, __all__, 1)
            hint = f"; did you mean {close[0]}?" if close else ""
            raise AttributeError(f"module 'algonet' has no attribute {name!r}{hint}", name=name)
        value = getattr(importlib.import_module(home), name)
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return sorted(__all__)
