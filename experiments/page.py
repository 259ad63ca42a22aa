"""The documentation's page of experiments, made from the recorded rows as the page of benchmarks is."""

from __future__ import annotations

import json
from pathlib import Path

from benchmarks.page import about, tables

HERE = Path(__file__).parent
RESULTS = HERE / "results"
PAGE = HERE.parent / "docs" / "experiments.md"
#: What was measured and tried beside the tables, section by section; written by hand.
NOTES = HERE / "notes.md"
#: Sections in reading order, and their titles; others come after these by name.
TITLES = {
    "sort_digits": "Sorting supervision: four-digit MNIST",
    "sort_small": "Sorting supervision in small: Newton losses",
    "topk": "Top-k supervision",
    "topk_small": "Top-k supervision on other digits",
    "learning_to_rank": "Learning to rank",
    "routing": "Routing to experts",
    "shortest_paths": "Shortest paths through learned costs",
    "fractals": "Fractals that look like digits",
    "pose": "Camera pose",
    "shape": "Shape from silhouettes and normals",
    "programs": "Programs with decisions",
    "ran": "The backward AlgoNet",
}
INTRO = """# Experiments

How well it learns. Each table is made by one command, `python -m experiments.NAME --data FOLDER`,
from the files people have; nothing is downloaded. `--quick` runs each in a minute on data made on the spot, `--out
FOLDER` keeps checkpoints of long trainings and goes on from them. The page is made by `python -m experiments --page` from
`experiments/results/*.json`. Figures of others carry their source; where a protocol differs from the published one
the text above the table says how. Rows in which others are better stay.
"""


def stem_of(record: Path) -> str:
    """The experiment of a record: NAME.json, or NAME_cpu.json where the first is of a card."""
    return record.stem.removesuffix("_cpu")


def markdown(results: Path = RESULTS) -> str:
    """The whole page."""
    parts = [INTRO]
    stems = {stem_of(path) for path in results.glob("*.json")}
    for stem in [*(s for s in TITLES if s in stems), *sorted(stems - set(TITLES))]:
        parts += [f"## {TITLES.get(stem, stem.replace('_', ' '))}\n", about(HERE / f"{stem}.py")]
        for path in filter(Path.exists, (results / f"{stem}.json", results / f"{stem}_cpu.json")):
            content = json.loads(path.read_text(encoding="utf-8"))
            machine = content["machine"]
            place = machine["gpu"] if machine["gpu"] != "none" else machine["cpu"]
            said = ", ".join(
                f"{k} {' '.join(map(str, v)) if isinstance(v, list) else v}"
                for k, v in content.get("options", {}).items()
                if v is not False
            )
            parts += [f"On {place}; options: {said}.\n" if said else f"On {place}.\n", *tables(path)]
    return "\n".join([*parts, NOTES.read_text(encoding="utf-8")])
