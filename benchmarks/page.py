"""The documentation's page of benchmark tables, made from the recorded rows (`harness` says what those look like)."""

from __future__ import annotations

import ast
import json
import re
from pathlib import Path

HERE = Path(__file__).parent
RESULTS = HERE / "results"
PAGE = HERE.parent / "docs" / "benchmarks.md"
#: Sections in reading order, and their titles; others come after these by name.
TITLES = {
    "sorting": "Soft sorting",
    "smooth_python": "Smooth Python",
    "while_lang": "WHILE-programs",
    "ifs": "Iterated function systems",
    "render": "Rendering",
    "ran": "The backward AlgoNet",
}
INTRO = """# Benchmarks

Made by `python -m benchmarks --page` from `benchmarks/results/*.json`; `make bench` measures again on your machine and
reports what became worse. Parity with the reference, or with the peer, is checked before anything is timed. f is the
forward pass, f+b forward and backward; ms are medians unless a section says otherwise, MiB is memory beyond the inputs.
Compare ratios rather than times: both sides of a ratio were measured in the same run, unless a footnote says where a figure
comes from.
"""


def markdown(results: Path = RESULTS) -> str:
    """The whole page."""
    parts = [INTRO]
    for name in _order({path.stem.removesuffix("_gpu") for path in results.glob("*.json")}):
        parts.append(f"## {TITLES.get(name, name.replace('_', ' '))}\n")
        for stem in (name, f"{name}_gpu"):
            path = results / f"{stem}.json"
            if path.exists():
                parts += [f"### {_place(stem, json.loads(path.read_text()))}\n", _about(stem), *_tables(path)]
    return "\n".join(parts)


def _order(names: set[str]) -> list[str]:
    return [*(name for name in TITLES if name in names), *sorted(names - set(TITLES))]


def _place(stem: str, content: dict) -> str:
    return f"On {content['machine']['gpu'] if stem.endswith('_gpu') else content['machine']['cpu']}"


def _about(stem: str) -> str:
    """What the benchmark's own docstring says it measures, without its usage line."""
    path = HERE / f"{stem}.py"
    if not path.exists():
        return ""  # the section above has said it: the same module ran on two machines
    text = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    return re.sub(r"(Run: )?python -m benchmarks\S*( \[.*\])*", "", text).strip() + "\n"


def _tables(path: Path) -> list[str]:
    content = json.loads(path.read_text())
    rows, notes = content["rows"], list(dict.fromkeys(r["note"] for r in content["rows"] if r.get("note")))
    parts = [_software(content["machine"])]
    if any(r.get("column") for r in rows):
        parts.append(_matrix([r for r in rows if r.get("column")], notes))
    single = [r for r in rows if not r.get("column")]
    if single:
        lines = [f"| {r['name']} | {_number(r['value'])} {_unit(r['unit'])}{_mark(r, notes)} |" for r in single]
        parts.append("\n".join(["| | |", "|---|---:|", *lines]) + "\n")
    if not rows:
        parts.append("No figures.\n")
    parts += [f"{i}. {note}" for i, note in enumerate(notes, 1)]
    return [*parts, ""] if notes else parts


def _software(machine: dict) -> str:
    versions = [f"{key} {machine[key]}" for key in machine if key not in ("cpu", "gpu", "date", "python")]
    return f"Python {machine['python']}, {', '.join(versions)}" + (
        f"; {machine['date']}.\n" if "date" in machine else ".\n"
    )


def _matrix(rows: list[dict], notes: list[str]) -> str:
    """One line per workload, one column per peer and quantity, in the order in which they first come."""
    columns = dict.fromkeys(_heading(row) for row in rows)
    cells: dict[str, dict[str, str]] = {}
    for row in rows:
        cells.setdefault(row["name"], {})[_heading(row)] = _number(row["value"]) + _mark(row, notes)
    lines = [f"| | {' | '.join(columns)} |", "|---|" + "---:|" * len(columns)]
    for name, found in cells.items():
        lines.append(f"| {name} | {' | '.join(found.get(column, '') for column in columns)} |")
    return "\n".join(lines) + "\n"


def _heading(row: dict) -> str:
    by = row.get("by", "algonet")
    unit = _unit(row["unit"])
    return f"{'' if by == 'algonet' else f'{by}: '}{row['column']}{f' ({unit})' if unit else ''}"


def _unit(unit: str) -> str:
    return {"ratio": "×", "score": "", "difference": ""}.get(unit, unit)


def _mark(row: dict, notes: list[str]) -> str:
    return f" [{notes.index(row['note']) + 1}]" if row.get("note") else ""


def _number(value: float) -> str:
    """Three digits, without an exponent for what people read at a glance."""
    if value and (abs(value) < 1e-3 or abs(value) >= 1e7):
        return f"{value:.1e}"
    digits = f"{value:.3g}"
    return f"{float(digits):,.0f}" if "e" in digits or abs(value) >= 1000 else digits
