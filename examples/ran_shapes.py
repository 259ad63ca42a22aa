"""Shapes from pictures without supervision: template, direct training, RAN and the supervised bound on held-out shapes.

python examples/ran_shapes.py [examples/configs/ran_cpu.toml] [--methods direct ran supervised] [--seeds 0 1 2] [--seconds 120]

Settings are chosen with `--split validation`; what is reported comes from the test split.
"""

from __future__ import annotations

import argparse
import dataclasses
import tempfile
import time

from algonet.ran import build_data, build_trainer, load_config
from algonet.ran.config import METHODS
from algonet.ran.problems import problem_of


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("config", nargs="?", default="examples/configs/ran_cpu.toml")
    parser.add_argument("--methods", nargs="+", default=["direct", "ran", "supervised"], choices=METHODS)
    parser.add_argument(
        "--seeds", nargs="+", type=int, default=[0], help="of weights and order; the shapes stay the same"
    )
    parser.add_argument("--seconds", type=float, help="of training for each row, at most (default: the file's steps)")
    parser.add_argument("--split", default="test", choices=("validation", "test"))
    arguments = parser.parse_args()
    config = load_config(arguments.config)
    held_out = build_data(config, arguments.split)
    problem = problem_of(config)
    print(f"{len(held_out)} held-out shapes ({arguments.split})")
    print(f"{'method':>12} {'seed':>5} {'voxel IoU':>10} {'Chamfer':>8} {'steps':>7} {'seconds':>8}")

    def row(method: str, seed: object, scores: dict[str, float], steps: object, seconds: object) -> None:
        print(
            f"{method:>12} {seed:>5} {scores['iou']:10.3f} {scores['chamfer']:8.3f} {steps:>7} {seconds:>8}", flush=True
        )

    row("template", "", problem.evaluate(None, held_out), "", "")
    for method in arguments.methods:
        for seed in arguments.seeds:
            with tempfile.TemporaryDirectory() as folder:
                trainer = build_trainer(dataclasses.replace(config, method=method, seed=seed), folder)
                started = time.perf_counter()
                trainer.fit(seconds=arguments.seconds)
                spent = time.perf_counter() - started
            scores = problem.evaluate(trainer.model, held_out)
            row(method, seed, scores, trainer.step, round(spent))


if __name__ == "__main__":
    main()
