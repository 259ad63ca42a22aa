"""`algonet cache` and `algonet warmup`: the folder of compiled kernels."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Option

from algonet.cli.common import Json, examples, print_json

if TYPE_CHECKING:
    from torch import Tensor


def register(app: typer.Typer) -> None:
    """Add both commands to the program."""
    app.command(epilog=examples("algonet cache", "algonet cache --clear"))(cache)
    app.command(epilog=examples("algonet warmup"))(warmup)


def cache(
    clear: Annotated[bool, Option("--clear", help="Remove all generated kernels and their machine code.")] = False,
    as_json: Json = False,
) -> None:
    """Show where compiled kernels are kept and how much there is, or clear it."""
    from algonet.core.codegen import store

    folder, found = store.cache_folder(), store.entries()
    size = sum(entry.size for entry in found)
    removed = store.clear() if clear else 0
    if as_json:
        print_json({"folder": str(folder), "files": len(found), "bytes": size, "removed": removed})
        return
    print(f"{folder}: {len(found)} files, {size / 2**20:.1f} MiB of at most {store.MOST_BYTES / 2**20:.0f} MiB")
    if clear:
        print(f"removed {removed} files")


def warmup() -> None:
    """Compile the kernels of a typical call of every operation, forward and backward, so that first calls are quick."""
    from algonet.cli.doctor import devices, load_domains
    from algonet.core.codegen import store
    from algonet.core.operation import example_calls

    load_domains()
    for device in devices():
        for operation, call in example_calls(device).items():
            begun = time.perf_counter()
            ran = _run_example(operation, *call)
            print(f"{operation} on {device} ({ran}): {time.perf_counter() - begun:.1f} s")
    print(f"kept in {store.cache_folder()}")


def _run_example(operation: str, tensors: Sequence[Tensor], settings: Any) -> str:
    """Run a call of the operation and its gradient; says on which backend."""
    import torch

    from algonet.core.operation import OPERATIONS

    for tensor in tensors:
        tensor.requires_grad_(tensor.is_floating_point())
    backend = OPERATIONS[operation].choose(tensors, settings, "auto")
    outputs = OPERATIONS[operation].on(backend, tensors, settings)(tensors)
    moving = [o.sum() for o in outputs if o.requires_grad]
    if moving:
        torch.stack(moving).sum().backward()
    return backend
