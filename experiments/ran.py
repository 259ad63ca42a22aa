"""The backward AlgoNet on its three inverse problems: shapes, function systems, speech; from inputs alone.

Each row trains one model in a process of its own; `--jobs` of them share the device. The template is what every model
begins from; direct training has no translators; the supervised model sees the truth, which no unsupervised one can beat;
weak ones see the truth of a share of the items. Shapes: voxel IoU and Chamfer distance on held-out shapes, pictures of 64 x
64. Function systems: SSIM of re-rendered pictures. Speech: phonemes right in their place, utterances without an error, and
1 - edits / phonemes on held-out sounds of other voices. Settings were chosen on the validation split, figures come from
the test split; the steps that each did are in its note. Nobody else has published figures for these.

Rows were measured in several runs on one kind of card. Direct vowels and the supervised rows ran beside other programs,
which slowed them: their notes give steps and seconds. Each seed of the shapes and function systems had 110 seconds, which
ended shapes after 309 to 400 steps. Shapes are tested on 64 held-out ones. Weakly supervised shapes and words have one
seed. Colours, and the supervised bounds of one view and of function systems, are not in the table; the page on backward
AlgoNets has the latter. No model was trained on espeak-ng's voices.

Rows of styles ("painted shapes", "textured systems", ...) leave parts out, one by one. "RAN" there has U-Nets, a
discriminator of patches, and a b2a that borrows the colours of its input. "With samples": D learns what b' should look like
from the smooth inverse of random reconstructions. "The way back": a2b and R learn from such samples, painted in an input's
colours. A rule on the colours of single pixels, fitted with labels, has a silhouette IoU of 1.00 on "palettes", 0.34 on
"painted" and 0.35 on "textured" shapes. Models train for 500 steps on shapes and 600 on syllables, all runs of a row side by
side on one card; weights were chosen with other seeds.

The card's rows of styles have D judge samples by logarithms, and samples of shapes that cover 0.26 of a picture, where objects
cover 0.35. So D on samples works with some seeds and fails with others (0.281 to 0.658). The way back works on "painted" and
"textured" shapes with D or without (0.698 and 0.700), and the paper's losses alone stay at the template. On syllables direct
training wins where spectra look alike ("palettes"); on "painted" ones nothing is far above the template. The CPU's rows have
the difference of D's logits, and samples that cover 0.35: see below.

Why logarithms are a matter of luck (this and the next paragraph: CPU, "painted small shapes", pictures of 16 x 16 from two
sides, validation split, seeds from 10 on, template 0.464): where b' begins inverted, D judges samples and b' rightly in
every case within 40 steps, and log(1 - D) has no slope there. With three seeds the voxel IoU was 0.519, 0.042 and 0.085
after 160 steps. Larger samples change nothing. The way round of b' after 50 steps, with ten more seeds: without D six
right, three inverted, one mixed; with logarithms, of the first six, the same four right and the same two inverted; with the
difference of logits all ten right, with IoUs of 0.62 to 0.71. A non-saturating or a hinge loss does the same (after 160
steps 0.72 and 0.64, the difference 0.70, with a seed that logarithms invert). At weight 2 instead of 10 b' stays inverted.
D also teaches how much of a picture is object: after 400 steps small samples at weight 5 gave IoUs of b' of 0.80 and 0.77,
of voxels 0.511 and 0.521; larger ones at weight 10 0.86 and 0.555; small ones whose weight falls to a tenth once R learns
0.88 and 0.550. The report seeds 0, 1 and 2 begin right without D, so that the CPU's rows with and without it are alike.

The CPU's rows are of a machine that other programs used: its seconds say nothing. On "painted" function systems D does the
work: without it, by the way back alone too, the similarity is near 0. Syllables on
"palettes", one seed of tuning on a CPU (400 training items, 300 steps, smaller networks, template 0.230): with samples
0.352 by difference and 0.289 by logarithms, by difference with the way back 0.320.

What else failed without a cue: the paper's losses with U-Nets collapse, because ||b'' - b'|| teaches a2b the template that R
begins from; b' differed by 0.01 per pixel between inputs. With borrowed colours and no samples, chance decides what is inside
and what outside: of six seeds, translators trained alone for 70 steps had b' right in two, inverted in three, and mixed in
one. Colours borrowed by way of b' instead of the sample itself gave 0.37 to 0.49, the residual of a added to painted samples
0.67.

An earlier record of shapes of 64 x 64 from four sides: with silhouettes as B the IoU is 0.719 after 412 steps, with shaded
renderings 0.594 after 386. A fifth of the Laplacian's weight and a tenth of the adversarial weight add 0.01. Trained
separately, the losses reach 0.768, together 0.755. One view reaches 0.621 (template 0.505): depth stays the template's.
With colours (16 x 16, 160 steps), the mean difference of rendered colours is 0.093 (template 0.248), and 0.294 where a2b
chooses colours freely. Function systems of 64 x 64: RAN 0.866 and 0.845, separately 0.793, supervised 0.932, template
0.346. Dots of one pixel instead of four end at 0.413, and so do systems turned by any angle. On a CPU, `ran_cpu.toml`: RAN
0.638, direct 0.009, supervised 0.667, template 0.515.

Run: python -m experiments.ran [--problems "painted shapes" speech] [--lines RAN "RAN with samples"] [--seeds 0 1 2]
                               [--seconds 600] [--jobs 4]
"""

from __future__ import annotations

import dataclasses
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from algonet.ran.data import STYLES
from experiments.harness import Row, arguments, record, save, spread_of

CONFIGS = Path(__file__).parents[1] / "examples" / "configs"


@dataclass(frozen=True)
class Job:
    """One line of the table: a configuration file, what is changed in it, and how many seeds it gets at most."""

    name: str
    file: str
    method: str
    changes: dict[str, dict[str, Any]] = field(default_factory=dict)
    seeds: int = 3
    #: What the line is called, where that is not the method
    label: str = ""

    @property
    def line(self) -> str:
        return f"{self.name}: {self.label or self.method}"


SHAPES = {"data": {"test": 64}, "loss": {"separately": False}, "train": {"steps": 400}}
ONE_VIEW = {**SHAPES, "data": {"test": 64, "views": 1}}
SPEECH = {
    "data": {"train": 3000, "validation": 256, "test": 500},
    "model": {"width": 128, "base": 16, "translator_base": 16},
}
#: Of each task and method: steps, and the weights of being undecided and unbalanced.
SAID = {
    ("vowels", "ran"): (500, 0.1, 0.5), ("vowels", "direct"): (700, 0.1, 0.5),
    ("syllables", "ran"): (600, 0.05, 0.5), ("syllables", "direct"): (1000, 0.05, 0.5),
    ("words", "ran"): (600, 0.05, 0.5), ("words", "direct"): (1000, 0.05, 0.1),
}  # fmt: skip


def _speech(task: str, method: str) -> dict[str, dict[str, Any]]:
    steps, undecided, unbalanced = SAID.get((task, method), (700, 0.0, 0.0))
    return {
        **SPEECH,
        "data": {**SPEECH["data"], "task": task},
        "loss": {"undecided": undecided, "unbalanced": unbalanced},
        "train": {"steps": steps, "batch": 32},
    }


def _labelled(share: float) -> dict[str, dict[str, Any]]:
    return {**SHAPES, "data": {"test": 64, "labels": share}}


JOBS = {
    "shapes": [
        Job("shapes, four views", "ran_gpu.toml", "ran", SHAPES),
        Job("shapes, four views", "ran_gpu.toml", "supervised", SHAPES, 1),
        *(
            Job(f"shapes, four views, {100 * share:.0f} % labelled", "ran_gpu.toml", "weak", _labelled(share), 1)
            for share in (0.01, 0.05, 0.2, 1.0)
        ),
        Job("shapes, one view", "ran_gpu.toml", "ran", ONE_VIEW),
        Job("shapes, one view", "ran_gpu.toml", "supervised", ONE_VIEW, 1),
        Job("shapes with colours", "ran_gpu.toml", "ran", {**SHAPES, "model": {"colours": True}}, 1),
    ],
    "fractals": [
        Job("function systems, 32 x 32", "ran_ifs.toml", method, {}, seeds)
        for method, seeds in (("ran", 3), ("direct", 1), ("supervised", 1))
    ],
    "speech": [
        Job(task, "ran_speech.toml", method, _speech(task, method), seeds)
        for task in ("vowels", "syllables", "words")
        for method, seeds in (("ran", 3), ("direct", 1), ("supervised", 1))
    ],
}


#: U-Nets, a discriminator of patches, and a b2a that borrows its colours: the paper's five losses alone.
REPAINT = {"model": {"translator": "repaint"}, "loss": {"adversarial": 0.1}, "train": {"reconstructor_rate": 1.0}}
SAMPLED = {**REPAINT, "loss": {"adversarial": 0.1, "samples": 10.0}}
#: The lines of the table of styles: label -> method and what is changed.
VARIANTS: dict[str, tuple[str, dict[str, dict[str, Any]]]] = {
    "direct": ("direct", {}),
    "RAN, local translators": ("ran", {}),
    "RAN": ("ran", REPAINT),
    "RAN with samples": ("ran", SAMPLED),
    "RAN with samples, adversarial = 0": ("ran", {**SAMPLED, "loss": {"adversarial": 0.0, "samples": 10.0}}),
    "RAN with samples and the way back": ("ran", {**SAMPLED, "loss": {**SAMPLED["loss"], "way_back": 3.0}}),
    "RAN with the way back, adversarial = 0": ("ran", {**SAMPLED, "loss": {"adversarial": 0.0, "way_back": 3.0}}),
    "weak, 1 %": ("weak", {**SAMPLED, "data": {"labels": 0.01}}),
    "weak, 5 %": ("weak", {**SAMPLED, "data": {"labels": 0.05}}),
    "supervised": ("supervised", {}),
}


def _merged(*tables: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {}
    for table in tables:
        for name, changes in table.items():
            found[name] = {**found.get(name, {}), **changes}
    return found


#: The problems in other styles; each makes one table of `VARIANTS`.
STYLED = {
    "small shapes": (
        "ran_cpu.toml",
        {"data": {"size": 16, "views": 2, "test": 32, "seed": 1}, "train": {"steps": 400, "wait": 80}},
    ),
    "shapes": (
        "ran_gpu.toml",
        {
            "data": {"size": 32, "train": 800, "test": 48, "seed": 1},
            "model": {"level": 2},
            "loss": {"separately": False},
            "train": {"steps": 500, "wait": 80},
        },
    ),
    "systems": ("ran_ifs.toml", {}),
    "syllables": ("ran_speech.toml", _speech("syllables", "ran")),
}
JOBS |= {
    f"{style} {problem}": [
        Job(f"{problem}, {style}", file, method, _merged(base, changes, {"data": {"style": style}}), 3, label)
        for label, (method, changes) in VARIANTS.items()
    ]
    for problem, (file, base) in STYLED.items()
    for style in STYLES
}


def train(job: Job, seed: int, seconds: float, quick: bool, out: str | Path | None) -> dict[str, Any]:
    """Train one model here and now; its scores, the template's, and what it took."""
    from examples.ran_compare import EspeakUtterances

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
        kept = Path(out or folder) / re.sub(r"\W+", "-", f"{job.line} {seed}")
        trainer = build_trainer(config, kept, progress=False)
        began = time.perf_counter()
        trainer.fit(seconds=seconds, resume=True)
        spent = time.perf_counter() - began
    scores = problem.evaluate(trainer.model.eval(), held_out)
    if config.kind == "speech" and problem.style.cue and shutil.which("espeak-ng") and not quick:
        others = EspeakUtterances(config.data.task, config.data.size)
        scores[ESPEAK] = problem.evaluate(trainer.model, others)["phonemes"]
    return {"scores": scores, "template": problem.evaluate(None, held_out), "steps": trainer.step, "seconds": spent}


def apart(job: Job, seed: int, seconds: float, quick: bool, out: Path | None) -> dict[str, Any] | None:
    """`train` in a process of its own."""
    said = json.dumps([dataclasses.asdict(job), seed, seconds, quick, str(out) if out else None])
    command = [sys.executable, "-m", "experiments.ran", "--one", said]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    if done.returncode:  # the other runs go on
        print(f"experiments.ran: {job.line}, seed {seed}: {done.stderr[-1500:]}", file=sys.stderr, flush=True)
        return None
    found = json.loads(done.stdout.splitlines()[-1])
    shown = ", ".join(f"{name} {value:.3f}" for name, value in found["scores"].items())
    began = ", ".join(f"{value:.3f}" for value in found["template"].values())
    print(
        f"{job.line}, seed {seed}: {shown} (template {began}), {found['steps']} steps in {found['seconds']:.0f} s",
        flush=True,
    )
    return found


#: The column of an independent synthesizer's voices, which no model was trained on.
ESPEAK = "phonemes of espeak-ng's voices"
#: Figures of which less is better.
ERRORS = ("chamfer", "colour")


def rows(job: Job, found: list[dict[str, Any]]) -> list[Row]:
    """A line for the template and one for the job, a column for each figure: the mean over seeds; the note has each of them."""
    steps = ", ".join(str(f["steps"]) for f in found)
    lines = []
    for metric, unit in ((m, "difference" if m in ERRORS else "score") for m in found[0]["scores"]):
        if metric in found[0]["template"]:
            lines.append(Row(f"{job.name}: template", found[0]["template"][metric], unit, metric))
        values = [f["scores"][metric] for f in found]
        mean, deviation = spread_of(values)
        shown = ", ".join(f"{v:.3f}" for v in values)
        each = f"seeds {shown}; standard deviation {deviation:.3f}; " if len(values) > 1 else ""
        note = f"{each}{steps} steps in {max(f['seconds'] for f in found):.0f} s"
        lines.append(Row(job.line, mean, unit, metric, note=note))
    return lines


def table(found: list[tuple[Job, dict[str, Any]]]) -> list[Row]:
    """The rows of all jobs so far; methods of one problem share their template's."""
    lines: dict[tuple[str, str], Row] = {}
    for job in {id(job): job for job, _ in found}.values():
        for row in rows(job, [result for other, result in found if other is job]):
            lines.setdefault((row.name, row.column), row)
    return list(lines.values())


def main() -> None:
    if sys.argv[1:2] == ["--one"]:
        job, *rest = json.loads(sys.argv[2])
        print(json.dumps(train(Job(**job), *rest)))
        return
    options = arguments(
        __doc__, resumes=True, choices={"problems": JOBS, "lines": VARIANTS}, problems=list(JOBS), lines=list(VARIANTS),
        seeds=[0, 1, 2], seconds=600.0, jobs=4,
    )  # fmt: skip
    chosen = [
        job for problem in options.problems for job in JOBS[problem] if not job.label or job.label in options.lines
    ]
    if options.quick:
        options.seeds, options.jobs = [0], 1
        chosen = [next(job for job in JOBS[problem] if job in chosen) for problem in options.problems]
    # One seed of every line first: a run that is stopped then has them all
    runs = [(job, seed) for i, seed in enumerate(options.seeds) for job in chosen if i < job.seeds]
    # Quickly, only the first is apart: starting Python would take longer than training
    ways = [apart if i == 0 or not options.quick else train for i in range(len(runs))]
    with ThreadPoolExecutor(options.jobs) as pool:
        results = pool.map(lambda way, run: way(*run, options.seconds, options.quick, options.out), ways, runs)
        found: list[tuple[Job, dict[str, Any]]] = []
        for (job, _), result in zip(runs, results, strict=True):
            if result is not None:
                found.append((job, result))
                save(options.json, table(found), options)
    record(options.json, table(found), options)
    if len(found) < len(runs):
        sys.exit(f"experiments.ran: {len(runs) - len(found)} of {len(runs)} runs failed.")


if __name__ == "__main__":
    main()
