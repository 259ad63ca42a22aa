"""algonet: smooth algorithmic layers for PyTorch.

Classic algorithms whose crisp decisions (if, while, sort, max, which pixel, which triangle in front) are smooth, so
that gradients flow through the decisions themselves. The most used names are here, loaded when first touched.
"""

from __future__ import annotations

import importlib
import re
from pathlib import Path
from typing import Any

__version__ = "0.2.0"

#: The public names of each module, as `__init__.pyi` lists them for editors.
_NAMES: dict[str, list[str]] = {
    module: re.findall(r"(\w+) as", names)
    for module, names in re.findall(
        r"^from ([\w.]+) import \((.*?)\)", Path(__file__).with_suffix(".pyi").read_text("utf-8"), re.M | re.S
    )
}
_HOMES = {name: home for home, names in _NAMES.items() for name in names}

__all__ = [*sorted(_HOMES), "__version__"]  # pyright: ignore[reportUnsupportedDunderAll]


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
