"""What the templates stand on: the edge integrals as straight-line source for a given df, which is what LLVM needs to see to
vectorise the loop around them, and the formulas that Triton's kernels have too."""

# pyright: reportAttributeAccessIssue=false
from __future__ import annotations

import math
import re
from pathlib import Path

from algonet.core.codegen.generate import TEMPLATE

from ... import vectors
from ...constants import BACK, EDGE_GUARD, FADE, FAINT, FAR_PIXELS, FLAT, FLIP_AREA, GREY
from ...lights import AMBIENT, DIRECTIONAL, HEADLIGHT, LIGHT, NOWHERE, ROUNDING, TOP, TURN

_ATAN = (
    1.0,
    -0.33333197,
    0.19996658,
    -0.14248517,
    0.10882252,
    -0.08222059,
    0.055126704,
    -0.028560145,
    0.009593663,
    -0.0015133966,
)

_IMPORTS = """import numpy as np
from numba import float32, int64

from algonet.core.codegen.jit import njit
from algonet.core.codegen.numba_math import maximum, minimum, where

sqrt = np.sqrt
OPTIONS = {"fastmath": {"contract"}, "error_model": "numpy", "nogil": True}
"""
#: What differs between the precisions.
_HEADERS = {
    "float32": """from algonet.core.codegen.numba_math import exp32 as exp, log32 as log

real = float32
EXACT, HIDDEN = 1e-5, 1e-9
""",
    "float64": """from math import exp, log

from numba import float64

real = float64
EXACT, HIDDEN = 1e-13, 1e-15
""",
}


def prelude(precision: str, half: int) -> str:
    """What the templates stand on: imports, constants, and for one precision and df `real`, `exp`, `log`, `angle`, `edge`."""
    numbers = {
        "FLIP_AREA": FLIP_AREA, "FAR": FAR_PIXELS, "FAINT2": FAINT**2, "FLAT": FLAT, "EDGE_GUARD": EDGE_GUARD,
        "BACK": BACK, "GREY": GREY, "AMBIENT": AMBIENT, "DIRECTIONAL": DIRECTIONAL, "HEADLIGHT": HEADLIGHT, "LIGHT": LIGHT,
    }  # fmt: skip
    own = {
        "FADE2": FADE**2, "GUARD2": vectors.GUARD**2, "NOWHERE2": NOWHERE**2, "ROUNDING2": ROUNDING**2, "TURN2": TURN**2,
        "INVERSE_TOP": 1 / TOP, "FLATNESS": vectors.FLATNESS, "LEAST_SQUARE": vectors.LEAST_SQUARE, "SMALL2": vectors.SMALL**2,
    }  # fmt: skip
    constants = "".join(f"{name} = {value!r}\n" for name, value in numbers.items())
    constants += "".join(f"{name} = np.{precision}({value!r})\n" for name, value in own.items())
    shared = translated(Path(__file__).parents[1] / "triton" / "shared.py")
    parts = [
        _IMPORTS + _HEADERS[precision] + constants,
        _RSQRT,
        _angle(precision),
        _edge(half),
        shared,
    ]
    return "\n\n".join(parts)


_RSQRT = """@njit(forceinline=True, **OPTIONS)
def rsqrt(x):
    return real(1.0) / sqrt(x)
"""


def translated(path: Path) -> str:
    """Functions of numbers and tuples that are written for Triton, for Numba: bare literals would be float64 there."""
    text = path.read_text(encoding="utf-8").split(TEMPLATE)[1]
    text = text.replace("@triton.jit", "@njit(forceinline=True, **OPTIONS)").replace("tl.static_range", "range")
    text = re.sub(r"(?<![\w.])\d+(?:\.\d+(?:e-?\d+)?|e-?\d+)", r"real(\g<0>)", text.replace(": tl.constexpr", ""))
    return re.sub(r"\btl\.", "", text)


def _angle(precision: str) -> str:
    if precision == "float64":
        return "@njit(forceinline=True, **OPTIONS)\ndef angle(y, x):\n    return np.arctan2(y, x)\n"
    lines = [
        "@njit(forceinline=True, **OPTIONS)",
        "def angle(y, x):",
        '    """atan2(y, x) for y >= 0: a polynomial of the smaller over the larger, error below 2e-7."""',
        "    a = abs(x)",
        "    t = min(a, y) / max(max(a, y), real(1e-30))",
        "    z = t * t",
        f"    v = real({_ATAN[-1]})",
        *(f"    v = v * z + real({c})" for c in reversed(_ATAN[:-1])),
        "    v = v * t",
        "    v = real(1.5707963267948966) - v if y > a else v",
        "    return real(3.141592653589793) - v if x < real(0.0) else v",
    ]
    return "\n".join(lines) + "\n"


def _series(half: int, last: int) -> list[str]:
    """J_1 .. J_last in scaled form; `total` is the sum of the first `half`."""
    lines = [
        "    rho2 = d * d + sigma2",
        "    rho = np.sqrt(rho2)",
        "    inverse = real(1.0) / rho2",
        "    z0 = t0 * t0 + rho2",
        "    z1 = t1 * t1 + rho2",
        "    both = sigma2 / (z0 * z1)",
        "    s0 = both * z1",
        "    s1 = both * z0",
        "    ratio = sigma2 * inverse",
        "    j1 = angle(rho * (t1 - t0), rho2 + t0 * t1) * rho * inverse",
        "    total = j1",
        "    e0 = t0 * inverse",
        "    e1 = t1 * inverse",
    ]
    for k in range(1, last):
        lines += [
            "    e0 = e0 * s0",
            "    e1 = e1 * s1",
            f"    j{k + 1} = (e1 - e0) * real({1 / (2 * k)!r}) + real({(2 * k - 1) / (2 * k)!r}) * ratio * j{k}",
        ]
        if k < half:
            lines.append(f"    total = total + j{k + 1}")
    return lines


def _edge(half: int) -> str:
    lines = [
        "@njit(forceinline=True, **OPTIONS)",
        "def edge(t0, t1, d, sigma2):",
        '    """Coverage, moment along the outward normal, and the density times 1, t and t^2 integrated along the edge."""',
        *_series(half, half + 1),
        "    p0 = s0",
        "    p1 = s1",
        *["    p0 = p0 * s0", "    p1 = p1 * s1"] * (half - 1),
        f"    k0 = real({half / math.pi!r}) * j{half + 1}",
        "    k1 = real(0.15915494309189535) * (p0 - p1)",
        f"    k2 = real({half / math.pi!r}) * (sigma2 * j{half} - rho2 * j{half + 1})",
        f"    return d * total * real(0.15915494309189535), sigma2 * j{half} * real(0.15915494309189535), (k0, k1, k2)",
    ]
    return "\n".join(lines) + "\n"
