"""Libraries that only some calls need. They are imported where they are used, and come with an extra of the package."""

from __future__ import annotations

import importlib.util

#: Module -> the extra of `algonet-torch` that installs it.
EXTRAS = {
    "trimesh": "render",
    "PIL": "render",
    "matplotlib": "plots",
    "typer": "cli",
    "rich": "cli",
    "lightning_fabric": "train",
    "safetensors": "train",
    "tensorboard": "train",
    "nicegui": "play",
}


def installed(module: str) -> bool:
    """Whether `module` can be imported, without importing it."""
    return importlib.util.find_spec(module) is not None


def require(*modules: str) -> None:
    """Raise an ImportError that names the extra to install if one of `modules` is missing.

    require("matplotlib")
    import matplotlib.pyplot as plt
    """
    for module in modules:
        if not installed(module):
            raise ImportError(
                f"this call needs `{module}`, which is not installed: pip install 'algonet-torch[{EXTRAS[module]}]'",
                name=module,
            )
