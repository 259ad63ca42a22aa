"""The documentation's page of benchmark tables, and the README's few lines of them, made from the recorded rows.

`harness` says what rows look like. Nothing here measures anything.
"""

from __future__ import annotations

import ast
import json
import re
from pathlib import Path

HERE = Path(__file__).parent
RESULTS = HERE / "results"
PAGE = HERE.parent / "docs" / "benchmarks.md"
README = HERE.parent / "README.md"
#: Between these the README shows HEADLINES.
MARKS = ("<!-- figures -->", "<!-- /figures -->")
#: (record, workload, column, how the README calls it); what has not been recorded is left out.
HEADLINES = (
    ("sorting_gpu", "1000 x 32", "odd-even, f+b", "soft sort, odd-even, 1000 x 32"),
    (
        "visibility_gpu",
        "lit, 8 x 5120 faces x 256^2",
        "noise of 0.45 pixels, f+b",
        "render 8 x 5120 faces at 256², lit, noise of 0.45 pixels",
    ),
    (
        "visibility_gpu",
        "lit, 8 x 20480 faces x 512^2",
        "noise of 0.45 pixels, f+b",
        "render 8 x 20480 faces at 512², lit, noise of 0.45 pixels",
    ),
    (
        "visibility_gpu",
        "lit, 8 x 5120 faces x 256^2",
        "noise of a pixel, f+b",
        "render 8 x 5120 faces at 256², lit, noise of 1 pixel, the default",
    ),
    (
        "visibility_gpu",
        "lit, 8 x 20480 faces x 512^2",
        "noise of a pixel, f+b",
        "render 8 x 20480 faces at 512², lit, noise of 1 pixel, the default",
    ),
    ("while_lang_gpu", "Sech(2), 64 x 64", "f+b", "multiplication WHILE-program, 64 x 64 inputs"),
    ("smooth_python_gpu", "bubble sort of 100 x 16", "f+b", "bubble sort of 100 x 16 in a smooth language"),
    ("ifs_gpu", "1,000,000 points x 512^2, Probabilistic", "f+b", "a million points into 512², smoothly"),
    ("sorting", "1000 x 32", "odd-even, f+b", "soft sort, odd-even, 1000 x 32"),
    ("while_lang", "Sech(2), 64 x 64", "f+b", "multiplication WHILE-program, 64 x 64 inputs"),
    ("smooth_python", "bubble sort of 100 x 16", "f+b", "bubble sort of 100 x 16 in a smooth language"),
    ("ifs", "50,000 points x 128^2, Probabilistic", "f+b", "50,000 points into 128², smoothly"),
)
#: Sections in reading order, and their titles; others come after these by name.
TITLES = {
    "sorting": "Soft sorting",
    "ranking": "Top-k, ranks and ranking losses",
    "smooth_python": "Smooth Python",
    "while_lang": "WHILE-programs",
    "ifs": "Iterated function systems",
    "render": "Rendering",
    "visibility": "Hard and smooth pictures on a GPU",
    "render_calls": "Whole calls of the renderer",
    "fitting": "Fitting",
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
                parts += [
                    f"### {_place(stem, json.loads(path.read_text()))}\n",
                    *filter(None, [about(HERE / f"{stem if (results / f'{name}.json').exists() else name}.py")]),
                    *tables(path),
                ]
    return "\n".join(parts)


def readme(text: str, results: Path = RESULTS) -> str:
    """The README with its figures made again: forward and backward in milliseconds, ours and the others'."""
    lines = ["| forward and backward, ms | on | algonet | others |", "|---|---|---:|---|"]
    noted = False
    for stem, name, column, title in HEADLINES:
        path = results / f"{stem}.json"
        content: dict = json.loads(path.read_text()) if path.exists() else {"rows": []}
        rows = [r for r in content["rows"] if r["name"] == name and r["unit"] == "ms"]
        ours = next((r for r in rows if r.get("by", "algonet") == "algonet" and r.get("column") == column), None)
        if ours is not None:
            peers = [r for r in rows if r.get("by", "algonet") != "algonet" and r["column"].endswith(column)]
            noted = noted or any(r.get("note") for r in peers)
            others = "; ".join(f"{r['by']} {_number(r['value'])}{'*' if r.get('note') else ''}" for r in peers)
            machine = content["machine"]["gpu" if stem.endswith("_gpu") else "cpu"]
            lines.append(f"| {title} | {machine} | {_number(ours['value'])} | {others} |")
    if noted:
        lines += ["", "\\* measured in another run on the same kind of device"]
    before, rest = text.split(MARKS[0])
    return "\n".join([before + MARKS[0], *lines, MARKS[1] + rest.split(MARKS[1])[1]])


def _order(names: set[str]) -> list[str]:
    return [*(name for name in TITLES if name in names), *sorted(names - set(TITLES))]


def _place(stem: str, content: dict) -> str:
    return f"On {content['machine']['gpu'] if stem.endswith('_gpu') else content['machine']['cpu']}"


def about(path: Path) -> str:
    """What a module's own docstring says it measures, without how to run it."""
    if not path.exists():
        return ""  # the section above has said it: the same module ran on two machines
    text = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    usage = re.compile(r"^ *(Run: )?python -m (benchmarks|experiments)\b.*\n?(^ {8,}.*\n?)*", re.MULTILINE)
    return re.sub(r"\n{3,}", "\n\n", usage.sub("", text)).strip() + "\n"


def tables(path: Path) -> list[str]:
    content = json.loads(path.read_text())
    rows, notes = content["rows"], list(dict.fromkeys(r["note"] for r in content["rows"] if r.get("note")))
    parts = [_software(content["machine"])]
    if any(r.get("column") for r in rows):
        parts.append(_matrix([r for r in rows if r.get("column")], notes))
    single = [r for r in rows if not r.get("column")]
    if single:
        lines = [f"| {r['name']} | {_number(r['value'])} {_unit(r['unit'])}{_mark(r, notes)} |" for r in single]
        parts.append("\n".join(["| figure | value |", "|---|---:|", *lines]) + "\n")
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
    lines = [f"| workload | {' | '.join(columns)} |", "|---|" + "---:|" * len(columns)]
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
