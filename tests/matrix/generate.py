"""Measure the transform matrix and write it to docs/transforms.json, docs/layers.json and docs/transforms.md.

PYTHONPATH=tests python -m matrix.generate
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from .layers import LAYER_TRANSFORMS, LAYERS, Layer
from .operations import OPERATIONS
from .transforms import TRANSFORMS, Operation

DOCS = Path(__file__).parents[2] / "docs"
RECORD, LAYER_RECORD = DOCS / "transforms.json", DOCS / "layers.json"


def cell(operation: Operation, column: str) -> str:
    """ "yes", or why not: the stated reason, else what the check said."""
    if column in operation.why:
        return operation.why[column]
    if column == "GPU kernel" and not torch.cuda.is_available():
        return recorded().get(operation.case.name, {}).get(column, "not measured yet")
    return _outcome(lambda: TRANSFORMS[column](operation))


def layer_cell(layer: Layer, column: str) -> str:
    return layer.why[column] if column in layer.why else _outcome(lambda: LAYER_TRANSFORMS[column](layer))


def _outcome(check: Callable[[], None]) -> str:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            check()
    except pytest.skip.Exception as skipped:
        return str(skipped)
    except Exception as error:  # the matrix records whatever went wrong
        return f"fails: {type(error).__name__}: {' '.join(str(error).split())[:120]}"
    return "yes"


def recorded(record: Path = RECORD) -> dict[str, dict[str, str]]:
    return json.loads(record.read_text()) if record.exists() else {}


def measured() -> dict[str, dict[str, str]]:
    return {op.case.name: {column: cell(op, column) for column in TRANSFORMS} for op in OPERATIONS}


def measured_layers() -> dict[str, dict[str, str]]:
    return {layer.name: {column: layer_cell(layer, column) for column in LAYER_TRANSFORMS} for layer in LAYERS}


def page(matrix: dict[str, dict[str, str]], layers: dict[str, dict[str, str]]) -> str:
    """The Markdown page: a tick, or a number that leads to the reason."""
    reasons: list[str] = []

    def mark(text: str) -> str:
        if text == "yes":
            return "✓"
        if text not in reasons:
            reasons.append(text)
        return f"[{reasons.index(text) + 1}]"

    def table(kind: str, rows: dict[str, dict[str, str]], columns: list[str]) -> list[str]:
        """The columns and rows that are all ticks as sentences, the others as a table."""
        whole = [c for c in columns if all(row[c] == "yes" for row in rows.values())]
        others = [c for c in columns if c not in whole]
        complete = [name for name, row in rows.items() if all(row[c] == "yes" for c in others)]
        return [
            f"**Passed by every {kind}:** {', '.join(whole)}.",
            "",
            f"**{', '.join(others)}: passed by** {', '.join(f'`{name}`' for name in complete)}. The others:",
            "",
            f"| {kind} | " + " | ".join(others) + " |",
            "|---" * (len(others) + 1) + "|",
            *(
                f"| {name} | " + " | ".join(mark(row[c]) for c in others) + " |"
                for name, row in rows.items()
                if name not in complete
            ),
            "",
        ]

    lines = [
        "# What works with what",
        "",
        "Every operation and every transform of PyTorch, checked by the tests; a tick is a check that passed. Kernels are",
        "compared with the reference, values and gradients; those of the GPU on an NVIDIA H200.",
        "",
        "## Operations",
        "",
        *table("operation", matrix, list(TRANSFORMS)),
        "## Layers",
        "",
        *table("layer", layers, list(LAYER_TRANSFORMS)),
        *(f"- [{i}] {reason}" for i, reason in enumerate(reasons, 1)),
    ]
    return "\n".join(lines) + "\n"


def main() -> None:
    matrix, layers = measured(), measured_layers()
    RECORD.write_text(json.dumps(matrix, indent=1) + "\n")
    LAYER_RECORD.write_text(json.dumps(layers, indent=1) + "\n")
    (DOCS / "transforms.md").write_text(page(matrix, layers))
    for name, row in [*matrix.items(), *layers.items()]:
        print(name, {c: v for c, v in row.items() if v != "yes"} or "all")


if __name__ == "__main__":
    main()
