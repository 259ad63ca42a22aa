"""The backward AlgoNet on its three inverse problems: shapes, function systems, speech; from inputs alone.

Each row trains one model in a process of its own; `--jobs` of them share the device. The template is what every model
begins from; direct training has no translators; the supervised model sees the truth, which no unsupervised one can beat;
weak ones see the truth of a share of the items. Shapes: voxel IoU and Chamfer distance on held-out shapes, pictures of 64 x
64. Function systems: SSIM of re-rendered pictures. Speech: phonemes right in their place, utterances without an error, and
1 - edits / phonemes on held-out sounds of other voices. Settings were chosen on the validation split, figures come from
the test split; every model has the same limit of seconds, and the steps that it did are in its note. Nobody else has
published figures for these.

Run: python -m experiments.ran [--problems shapes speech] [--seeds 0 1 2] [--seconds 600] [--jobs 4]
"""

from __future__ import annotations

import dataclasses
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from experiments.harness import Row, arguments, record, spread_of

CONFIGS = Path(__file__).parents[1] / "examples" / "configs"


@dataclass(frozen=True)
class Job:
    """One line of the table: a configuration file, what is changed in it, and how many seeds it gets at most."""

    name: str
    file: str
    method: str
    changes: dict[str, dict[str, Any]] = field(default_factory=dict)
    seeds: int = 3


SHAPES = {"loss": {"separately": False}, "train": {"steps": 600}}
ONE_VIEW = {**SHAPES, "data": {"views": 1}}
SPEECH = {
    "data": {"train": 3000, "test": 500}, "model": {"width": 128, "base": 16, "translator_base": 16},
    "train": {"steps": 700, "batch": 32},
}  # fmt: skip


def _speech(task: str) -> dict[str, dict[str, Any]]:
    return {**SPEECH, "data": {**SPEECH["data"], "task": task}}


JOBS = {
    "shapes": [
        *(Job("shapes, four views", "ran_gpu.toml", m, SHAPES, s) for m, s in (("ran", 1), ("supervised", 1))),
        *(Job("shapes, one view", "ran_gpu.toml", m, ONE_VIEW, s) for m, s in (("ran", 1), ("supervised", 1))),
        *(
            Job(f"shapes, {share:.0%} labelled", "ran_gpu.toml", "weak", {**SHAPES, "data": {"labels": share}}, 1)
            for share in (0.01, 0.05, 0.2, 1.0)
        ),
        Job("shapes with colours", "ran_gpu.toml", "ran", {**SHAPES, "model": {"colours": True}}, 1),
    ],
    "fractals": [
        Job("function systems, 32 x 32", "ran_ifs.toml", method, {}, seeds)
        for method, seeds in (("ran", 3), ("direct", 1), ("supervised", 1))
    ],
    "speech": [
        Job(task, "ran_speech.toml", method, _speech(task), seeds)
        for task, most in (("vowels", 3), ("syllables", 2), ("words", 2))
        for method, seeds in (("ran", most), ("direct", 1), ("supervised", 1))
    ],
}  # fmt: skip


def train(job: Job, seed: int, seconds: float, quick: bool, out: str | None) -> dict[str, Any]:
    """Train one model here and now; its scores, the template's, and what it took."""
    from algonet.ran import build_data, build_trainer, load_config
    from algonet.ran.config import from_dict
    from algonet.ran.problems import problem_of

    table = load_config(CONFIGS / job.file).to_dict()
    table["method"], table["seed"] = job.method, seed
    for name, changes in job.changes.items():
        table[name] = {**table[name], **changes}
    # Nothing but the figures is wanted of a run here
    table["train"] = {**table["train"], "tensorboard": False, "pictures_every": 10**9}
    if quick:
        table["data"] = {**table["data"], "size": 16, "train": 8, "test": 4}
        table["model"] = {**table["model"], "level": 1, "width": 16, "base": 4, "translator_base": 4}
        table["train"] = {**table["train"], "steps": 2, "batch": 4, "accelerator": "cpu"}
    config = from_dict(table)
    problem, held_out = problem_of(config), build_data(config, "test")
    with tempfile.TemporaryDirectory() as folder:
        kept = Path(out or folder) / re.sub(r"\W+", "-", f"{job.name} {job.method} {seed}")
        trainer = build_trainer(config, kept, progress=False)
        began = time.perf_counter()
        trainer.fit(seconds=seconds, resume=True)
        spent = time.perf_counter() - began
    scores = problem.evaluate(trainer.model.eval(), held_out)
    return {"scores": scores, "template": problem.evaluate(None, held_out), "steps": trainer.step, "seconds": spent}


def apart(job: Job, seed: int, seconds: float, quick: bool, out: Path | None) -> dict[str, Any]:
    """`train` in a process of its own."""
    said = json.dumps([dataclasses.asdict(job), seed, seconds, quick, str(out) if out else None])
    command = [sys.executable, "-m", "experiments.ran", "--one", said]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    if done.returncode:
        raise RuntimeError(f"experiments.ran: {job.name}, {job.method}: {done.stderr[-1500:]}")
    found = json.loads(done.stdout.splitlines()[-1])
    print(f"{job.name}, {job.method}, seed {seed}: {found['scores']} in {found['steps']} steps", flush=True)
    return found


def rows(job: Job, found: list[dict[str, Any]]) -> list[Row]:
    """The mean over seeds of each figure of a job, and the template's."""
    steps = ", ".join(str(f["steps"]) for f in found)
    lines = []
    for metric in found[0]["scores"]:
        values = [f["scores"][metric] for f in found]
        mean, deviation = spread_of(values)
        shown = ", ".join(f"{v:.3f}" for v in values)
        each = f"seeds {shown}; standard deviation {deviation:.3f}; " if len(values) > 1 else ""
        note = f"{each}{steps} steps in {max(f['seconds'] for f in found):.0f} s"
        unit = "difference" if metric in ("chamfer", "colour") else "score"
        lines.append(Row(job.name, mean, unit, metric, job.method, note))
        lines.append(Row(job.name, found[0]["template"][metric], unit, metric, "template"))
    return lines


def main() -> None:
    if sys.argv[1:2] == ["--one"]:
        job, *rest = json.loads(sys.argv[2])
        print(json.dumps(train(Job(**job), *rest)))
        return
    options = arguments(__doc__, problems=list(JOBS), seeds=[0, 1, 2], seconds=600.0, jobs=4)
    chosen = [job for problem in options.problems for job in JOBS[problem]]
    if options.quick:
        options.seeds, options.jobs = [0], 1
        chosen = [JOBS[problem][0] for problem in options.problems]
    runs = [(job, seed) for job in chosen for seed in options.seeds[: job.seeds]]
    with ThreadPoolExecutor(options.jobs) as pool:
        found = list(pool.map(lambda run: (run[0], apart(*run, options.seconds, options.quick, options.out)), runs))
    lines: dict[tuple[str, str, str], Row] = {}
    for job in chosen:
        for row in rows(job, [result for other, result in found if other is job]):
            lines.setdefault((row.name, row.column, row.by), row)
    record(options.json, list(lines.values()), options)


if __name__ == "__main__":
    main()
