"""Training methods side by side on held-out items: template, direct training, RAN and the supervised bound.

python examples/ran_compare.py [examples/configs/ran_cpu.toml] [--methods direct ran supervised] [--seeds 0 1 2] [--seconds 120]

The configuration says what is reconstructed: shapes (ran_cpu.toml), function systems (ran_ifs.toml) or speech
(ran_speech.toml, with --task vowels, syllables or words; with --espeak also on the voices of espeak-ng, where it is installed).
Settings are chosen with `--split validation`; what is reported comes from the test split.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from dataclasses import replace
from pathlib import Path

from algonet.core.files import write_bytes
from algonet.core.pictures import png_bytes
from algonet.ran import build_data, build_trainer, load_config
from algonet.ran.config import METHODS, TASKS
from algonet.ran.data.utterances import EspeakUtterances
from algonet.ran.problems import problem_of
from algonet.ran.report import picture_grid


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("config", nargs="?", default="examples/configs/ran_cpu.toml")
    parser.add_argument("--methods", nargs="+", default=["direct", "ran", "supervised"], choices=METHODS)
    parser.add_argument(
        "--seeds", nargs="+", type=int, default=[0], help="of weights and order; the items stay the same"
    )
    parser.add_argument("--seconds", type=float, help="of training for each row, at most (default: the file's steps)")
    parser.add_argument("--steps", type=int, help="of training (default: the file's)")
    parser.add_argument("--split", default="test", choices=("validation", "test"))
    parser.add_argument("--task", choices=TASKS, help="what is said (default: the file's)")
    parser.add_argument("--espeak", action="store_true", help="try speech on the voices of espeak-ng too")
    parser.add_argument("--picture", type=Path, help="where to draw held-out inputs and what the last row made of them")
    options = parser.parse_args()
    config = load_config(options.config)
    config = replace(
        config, data=replace(config.data, task=options.task or config.data.task),
        train=replace(config.train, steps=options.steps or config.train.steps),
    )  # fmt: skip
    problem, held_out = problem_of(config), {options.split: build_data(config, options.split)}
    if options.espeak:
        held_out["espeak-ng"] = EspeakUtterances(config.data.task, config.data.size)
    for where, data in held_out.items():
        print(f"{where}: {len(data)} items; {row('template', problem.evaluate(None, data))}")
    for method in options.methods:
        for seed in options.seeds:
            with tempfile.TemporaryDirectory() as folder:
                trainer = build_trainer(replace(config, method=method, seed=seed), folder)
                started = time.perf_counter()
                trainer.fit(seconds=options.seconds)
                spent = time.perf_counter() - started
            model = trainer.model.eval()
            for where, data in held_out.items():
                name = f"{where}: {method}, seed {seed}, {trainer.step} steps, {spent:.0f} s"
                print(row(name, problem.evaluate(model, data)), flush=True)
    if options.picture:
        a = held_out[options.split].batch(list(range(6)), ("a",))["a"].to(next(model.parameters()).device)
        write_bytes(options.picture, png_bytes(picture_grid(model, a).movedim(0, -1)))


def row(name: str, scores: dict[str, float]) -> str:
    return f"{name}: " + "  ".join(f"{key} {value:.3f}" for key, value in scores.items())


if __name__ == "__main__":
    main()
