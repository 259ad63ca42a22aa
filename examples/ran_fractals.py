"""Function systems from pictures without supervision: template, direct training, RAN and the supervised bound.

python examples/ran_fractals.py [examples/configs/ran_ifs.toml] [--methods direct ran supervised] [--seeds 0 1] [--picture P]

Each row is the mean SSIM between pictures of the systems found in held-out pictures and of the true ones. Settings are
chosen with `--split validation`; what is reported comes from the test split.
"""

from __future__ import annotations

import argparse
import dataclasses
import tempfile
import time
from pathlib import Path

import torch

from algonet.core.files import write_bytes
from algonet.ran import build_data, build_trainer, load_config
from algonet.ran.config import METHODS
from algonet.ran.model import Trainable
from algonet.ran.problems import problem_of
from algonet.ran.problems.fractal import IFSInverse
from algonet.ran.report import png_bytes


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("config", nargs="?", default="examples/configs/ran_ifs.toml")
    parser.add_argument("--methods", nargs="+", default=["direct", "ran", "supervised"], choices=METHODS)
    parser.add_argument(
        "--seeds", nargs="+", type=int, default=[0], help="of weights and order; the fractals stay the same"
    )
    parser.add_argument("--seconds", type=float, help="of training for each row, at most (default: the file's steps)")
    parser.add_argument("--split", default="test", choices=("validation", "test"))
    parser.add_argument("--picture", type=Path, help="where to draw held-out inputs, what the RAN found, and the truth")
    arguments = parser.parse_args()
    config = load_config(arguments.config)
    held_out = build_data(config, arguments.split)
    print(f"{len(held_out)} held-out fractals ({arguments.split})")
    print(f"{'method':>12} {'seed':>5} {'SSIM':>8} {'steps':>7} {'seconds':>8}")
    problem = problem_of(config)
    print(f"{'template':>12} {'':>5} {problem.evaluate(None, held_out)['ssim']:8.3f}")
    for method in arguments.methods:
        for seed in arguments.seeds:
            with tempfile.TemporaryDirectory() as folder:
                trainer = build_trainer(dataclasses.replace(config, method=method, seed=seed), folder)
                started = time.perf_counter()
                trainer.fit(seconds=arguments.seconds)
                spent = time.perf_counter() - started
            model = trainer.model
            score = problem.evaluate(model, held_out)["ssim"]
            print(f"{method:>12} {seed:>5} {score:8.3f} {trainer.step:>7} {spent:8.0f}", flush=True)
            if method == "ran" and arguments.picture:
                write_bytes(arguments.picture, png_bytes(comparison(model, held_out)))


@torch.no_grad()
def comparison(model: Trainable, data, count: int = 8) -> torch.Tensor:
    """Three rows (3, 3 H, count W): inputs, the systems found in them, the true systems."""
    device = next(model.parameters()).device
    items = {name: t.to(device) for name, t in data.batch(list(range(count)), ("a", "parameters")).items()}
    inverse = IFSInverse(data.functions, data.size, points=4096, depth=16, seed=1).to(device)
    rows = [items["a"], inverse(model.reconstruct(items["a"])), inverse(items["parameters"])]
    return torch.cat([torch.cat(list(row.expand(-1, 3, -1, -1)), -1) for row in rows], -2).cpu()


if __name__ == "__main__":
    main()
