"""What runs on this machine, and why the rest doesn't."""

from __future__ import annotations

import importlib.metadata
import platform
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from algonet import __version__
from algonet.core.backends import BACKENDS
from algonet.core.operation import survey as survey_operations

DOMAINS = ("while_lang", "smooth_python", "sorting", "ifs", "render", "nn", "ran", "explain")
PACKAGES = ("torch", "numpy", "numba", "triton", "lark", "trimesh", "pillow", "matplotlib", "lightning-fabric")


def survey() -> dict[str, Any]:
    """Versions, devices, and for each operation on each device why a backend cannot run (None: it can)."""
    load_domains()
    return {
        "versions": {"algonet": __version__, "python": platform.python_version(), **{p: _version(p) for p in PACKAGES}},
        "devices": {
            "cpu": platform.machine(),
            **{f"cuda:{i}": torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())},
        },
        "operations": {device: survey_operations(device) for device in devices()},
    }


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def print_report() -> None:
    found, console = survey(), Console()
    versions, machine = Table("package", "version", title="versions"), Table("device", "name", title="devices")
    for package, version in found["versions"].items():
        versions.add_row(package, version or "[yellow]not installed[/yellow]")
    for device, name in found["devices"].items():
        machine.add_row(device, f"{name}, {torch.get_num_threads()} threads" if device == "cpu" else name)
    if torch.backends.mps.is_available():
        machine.add_row("mps", "Apple GPU (runs the reference)")
    for table in (versions, machine, *(_operations(*row) for row in found["operations"].items())):
        console.print(table)


def load_domains() -> None:
    """Import every domain, which registers its operations."""
    for domain in DOMAINS:
        importlib.import_module(f"algonet.{domain}")


def devices() -> tuple[str, ...]:
    """The kinds of device on which operations can run here."""
    return ("cpu", "cuda") if torch.cuda.is_available() else ("cpu",)


def _operations(device: str, operations: dict[str, dict[str, str | None]]) -> Table:
    table = Table("operation", *BACKENDS, title=f"operations on {device}")
    notes: dict[str, int] = {}
    for operation, reasons in operations.items():
        table.add_row(operation, *(_cell(reasons, backend, notes) for backend in BACKENDS))
    table.caption = "\n".join(f"({number}) {reason}" for reason, number in notes.items())
    table.caption_justify = "left"
    return table


def _cell(reasons: dict[str, str | None], backend: str, notes: dict[str, int]) -> str:
    """Whether a backend runs an operation; why not stands below the table, once, under the number that is shown."""
    if backend not in reasons:
        return "[dim]none[/dim]"
    reason = reasons[backend]
    return (
        "[green]runs[/green]" if reason is None else f"[yellow]no ({notes.setdefault(reason, len(notes) + 1)})[/yellow]"
    )
