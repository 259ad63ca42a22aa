"""Generated kernels: one formula in several dialects, written to readable files and loaded like any module.

A relaxation states its `scalar` formula once, in the names `abs, exp, log, sqrt, atan, erf, where, minimum, maximum`.
`scalar_function` wraps it into a function of each dialect; `load` writes a generated module into a cache folder, where
both compilers find its source (Triton insists on it) and where Numba keeps its machine code for later processes.
"""

from __future__ import annotations

import hashlib
import linecache
import re
import sys
import textwrap
import threading
from pathlib import Path
from types import ModuleType
from typing import ClassVar, Protocol

from algonet.core.codegen import store
from algonet.core.codegen.store import cache_folder, inlined

#: What each dialect puts before its functions: the names of the formulas, in its own terms.
PRELUDES = {
    "numba32": """from numba import float32

from algonet.core.codegen.jit import njit
from algonet.core.codegen.numba_math import abs32 as abs, atan32 as atan, erf32 as erf, exp32 as exp, log32 as log
from algonet.core.codegen.numba_math import maximum, minimum, sqrt32 as sqrt, where
""",
    "numba64": """from math import atan, erf, exp, log, sqrt

from algonet.core.codegen.jit import njit
from algonet.core.codegen.numba_math import maximum, minimum, where
""",
    "triton": """import triton
import triton.language as tl

from algonet.core.codegen.triton_math import atan, kernel
""",
}
_NUMBA = '@njit(fastmath={"contract"}, error_model="numpy", forceinline=True)'
_DECORATORS = {"numba32": _NUMBA, "numba64": _NUMBA, "triton": "@triton.jit"}
_LITERAL = re.compile(r"(?<![\w.])\d+\.\d+(?:e-?\d+)?")
_TRITON_NAMES = re.compile(r"\b(abs|erf|exp|log|maximum|minimum|sqrt|where)(?=\()")
_LOCK = threading.Lock()
_PREFIX = "algonet_generated_"
#: Generated modules that stay loaded: a few for each sigmoid, program and precision in use.
MOST_MODULES = 1024
#: The line that begins a template.
TEMPLATE = "# --- template ---\n"


__all__ = ["PRELUDES", "TEMPLATE", "Formula", "cache_folder", "load", "load_template", "scalar_function"]


class Formula(Protocol):
    """Whatever states a formula for kernels: statements that set `value` and `slope` from `z`, or `None`."""

    scalar: ClassVar[str | None]


def scalar_function(relax: Formula, name: str, dialect: str) -> str:
    """Source of `name(z) -> (value, slope)` for the relaxation's curve, z being the argument times its steepness."""
    if relax.scalar is None:
        raise ValueError(f"scalar_function: {type(relax).__name__} has no formula for kernels; use the reference.")
    body = textwrap.indent(translated(textwrap.dedent(relax.scalar).strip(), dialect), "    ")
    return (
        f"{_DECORATORS[dialect]}\n"
        f"def {name}(z):\n"
        f'    """{type(relax).__name__}: value and slope at the scaled argument."""\n'
        f"{body}\n"
        f"    return value, slope\n"
    )


def translated(formula: str, dialect: str) -> str:
    """A formula in the terms of a dialect."""
    if dialect == "numba32":
        # Numba takes a bare literal for float64, and would compute the whole expression in that
        return _LITERAL.sub(lambda literal: f"float32({literal.group(0)})", formula)
    if dialect == "triton":
        # Qualified, because Triton's interpreter replaces the attributes of `tl` and not names imported from it
        return _TRITON_NAMES.sub(lambda name: f"tl.{name.group(0)}", formula)
    return formula


def load(name: str, source: str) -> ModuleType:
    """Import generated `source` as a module; the same source is loaded only once.

    What runs is `source`, never what a file holds: the file in the cache folder is for readers, debuggers and Numba.
    """
    stamp = hashlib.sha256(source.encode() + inlined()).hexdigest()
    module_name = f"{_PREFIX}{name}_{stamp[:16]}"
    with _LOCK:
        found = sys.modules.get(module_name)
        if found is None:
            found = _execute(module_name, source, stamp)
        return found


def _execute(module_name: str, source: str, stamp: str) -> ModuleType:
    file = store.put(f"{module_name}.py", source.encode())
    path = f"<{module_name}>" if file is None else str(file)
    if "import triton" in source:
        store.guard_triton()
    # Triton reads the source of its kernels through linecache, which then does not look at the file
    linecache.cache[path] = (len(source), None, source.splitlines(keepends=True), path)
    module = ModuleType(module_name)
    module.__file__ = path
    module.__dict__["__algonet_stamp__"] = stamp
    sys.modules[module_name] = module
    try:
        exec(compile(source, path, "exec"), module.__dict__)
    except BaseException:
        del sys.modules[module_name]
        raise
    _forget_oldest()
    return module


def _forget_oldest() -> None:
    """Bound how many modules stay loaded; a module whose kernel is in use stays alive, and `load` makes it again."""
    loaded = [name for name in sys.modules if name.startswith(_PREFIX)]
    for name in loaded[:-MOST_MODULES]:
        linecache.cache.pop(sys.modules.pop(name).__file__ or "", None)


def load_template(name: str, prelude: str, *paths: Path) -> ModuleType:
    """Import what follows the line `# --- template ---` in each file, under the names that `prelude` defines.

    What precedes the line serves editors: it gives the names of one instance.
    """
    parts = [path.read_text(encoding="utf-8").split(TEMPLATE)[1].strip("\n") for path in paths]
    return load(name, "\n\n\n".join([prelude.strip("\n"), *parts]) + "\n")
