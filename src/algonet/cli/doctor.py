"""What runs on this machine, and why the rest doesn't."""

from __future__ import annotations

import importlib.metadata
import platform
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from algonet import __version__
from algonet.core import backends

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
        "operations": {device: backends.survey(device) for device in devices()},
    }


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def print_report() -> None:
    console = Console()
    console.print(_versions())
    console.print(_devices())
    load_domains()
    for device in devices():
        console.print(_operations(device))


def load_domains() -> None:
    """Import every domain, which registers its operations."""
    for domain in DOMAINS:
        importlib.import_module(f"algonet.{domain}")


def devices() -> tuple[str, ...]:
    """The kinds of device on which operations can run here."""
    return ("cpu", "cuda") if torch.cuda.is_available() else ("cpu",)


def _versions() -> Table:
    table = Table(title="versions")
    table.add_column("package")
    table.add_column("version")
    table.add_row("algonet", __version__)
    table.add_row("python", platform.python_version())
    for package in PACKAGES:
        table.add_row(package, _version(package) or "[yellow]not installed[/yellow]")
    return table


def _devices() -> Table:
    table = Table(title="devices")
    table.add_column("device")
    table.add_column("name")
    table.add_row("cpu", f"{platform.machine()}, {torch.get_num_threads()} threads")
    for index in range(torch.cuda.device_count()):
        table.add_row(f"cuda:{index}", torch.cuda.get_device_name(index))
    if torch.backends.mps.is_available():
        table.add_row("mps", "Apple GPU (runs the reference)")
    return table


def _operations(device: str) -> Table:
    table = Table(title=f"operations on {device}")
    table.add_column("operation")
    for backend in backends.BACKENDS:
        table.add_column(backend)
    notes: dict[str, int] = {}
    for operation, reasons in backends.survey(device).items():
        table.add_row(operation, *(_cell(reasons, backend, notes) for backend in backends.BACKENDS))
    if not table.row_count:
        table.add_row("(none registered)", *[""] * len(backends.BACKENDS))
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
