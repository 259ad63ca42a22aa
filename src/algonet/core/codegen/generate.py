"""Generated kernels: one formula in several dialects, written to readable files and loaded like any module.

A relaxation states its `scalar` formula once, in the names `abs, exp, log, sqrt, atan, erf, where, minimum, maximum`.
`scalar_function` wraps it into a function of each dialect; `load` writes a generated module into a cache folder, where
both compilers find its source (Triton insists on it) and where Numba keeps its machine code for later processes.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.util
import os
import re
import sys
import tempfile
import textwrap
import threading
from pathlib import Path
from types import ModuleType
from typing import Protocol

from algonet.core.files import write_text

#: What each dialect puts before its functions: the names of the formulas, in its own terms.
PRELUDES = {
    "numba32": """from numba import float32, njit

from algonet.core.codegen.numba_math import abs32 as abs, atan32 as atan, erf32 as erf, exp32 as exp, log32 as log
from algonet.core.codegen.numba_math import maximum, minimum, sqrt32 as sqrt, where
""",
    "numba64": """from math import atan, erf, exp, log, sqrt

from numba import njit

from algonet.core.codegen.numba_math import maximum, minimum, where
""",
    "triton": """import triton
import triton.language as tl

from algonet.core.codegen.triton_math import atan
""",
}
_NUMBA = '@njit(fastmath={"contract"}, error_model="numpy")'
_DECORATORS = {"numba32": _NUMBA, "numba64": _NUMBA, "triton": "@triton.jit"}
_LITERAL = re.compile(r"(?<![\w.])\d+\.\d+(?:e-?\d+)?")
_TRITON_NAMES = re.compile(r"\b(abs|erf|exp|log|maximum|minimum|sqrt|where)(?=\()")
_LOCK = threading.Lock()
#: The line that begins a template.
TEMPLATE = "# --- template ---\n"


class Formula(Protocol):
    """Whatever states a formula for kernels: statements that set `value` and `slope` from `z`, or `None`."""

    @property
    def scalar(self) -> str | None: ...


def scalar_function(relax: Formula, name: str, dialect: str) -> str:
    """Source of `name(z) -> (value, slope)` for the relaxation's curve, z being the argument times its steepness."""
    if relax.scalar is None:
        raise ValueError(f"scalar_function: {type(relax).__name__} has no formula for kernels; use the reference.")
    body = textwrap.indent(textwrap.dedent(relax.scalar).strip(), "    ")
    if dialect == "numba32":
        # Numba takes a bare literal for float64, and would compute the whole expression in that
        body = _LITERAL.sub(lambda literal: f"float32({literal.group(0)})", body)
    if dialect == "triton":
        # Qualified, because Triton's interpreter replaces the attributes of `tl` and not names imported from it
        body = _TRITON_NAMES.sub(lambda name: f"tl.{name.group(0)}", body)
    return (
        f"{_DECORATORS[dialect]}\n"
        f"def {name}(z):\n"
        f'    """{type(relax).__name__}: value and slope at the scaled argument."""\n'
        f"{body}\n"
        f"    return value, slope\n"
    )


def load(name: str, source: str) -> ModuleType:
    """Import generated `source` as a module from a file in the cache folder; the same source is written only once."""
    digest = hashlib.sha256(source.encode() + _inlined()).hexdigest()[:16]
    module_name = f"algonet_generated_{name}_{digest}"
    with _LOCK:
        if module_name in sys.modules:
            return sys.modules[module_name]
        path = cache_folder() / f"{module_name}.py"
        if not path.exists():
            write_text(path, source)
        spec = importlib.util.spec_from_file_location(module_name, path)
        if spec is None or spec.loader is None:
            raise ImportError(f"algonet could not load its generated kernel from {path}.")
        module = importlib.util.module_from_spec(spec)
        sys.modules[module_name] = module
        try:
            spec.loader.exec_module(module)
        except BaseException:
            del sys.modules[module_name]
            raise
        return module


def load_template(name: str, prelude: str, *paths: Path) -> ModuleType:
    """Import what follows the line `# --- template ---` in each file, under the names that `prelude` defines.

    What precedes the line serves editors: it gives the names of one instance.
    """
    parts = [path.read_text(encoding="utf-8").split(TEMPLATE)[1].strip("\n") for path in paths]
    return load(name, "\n\n\n".join([prelude.strip("\n"), *parts]) + "\n")


@functools.cache
def _inlined() -> bytes:
    """The functions that generated kernels inline: an edit of these must not find yesterday's machine code."""
    return b"".join((Path(__file__).parent / name).read_bytes() for name in ("numba_math.py", "triton_math.py"))


def cache_folder() -> Path:
    """Where generated kernels live: $ALGONET_CACHE, else the user's cache folder, else a temporary one."""
    chosen = os.environ.get("ALGONET_CACHE")
    base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    folder = Path(chosen) if chosen else Path(base) / "algonet"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if os.access(folder, os.W_OK):
            return folder
    except OSError:
        pass
    folder = Path(tempfile.gettempdir()) / f"algonet-{os.getuid() if hasattr(os, 'getuid') else 'cache'}"
    folder.mkdir(parents=True, exist_ok=True)
    return folder
