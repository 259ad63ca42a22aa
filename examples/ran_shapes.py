"""Shapes from pictures without supervision: template, direct training, RAN and the supervised bound on held-out shapes.

python examples/ran_shapes.py [examples/configs/ran_cpu.toml] [--methods direct ran supervised] [--seconds 120]
"""

from __future__ import annotations

import argparse
import dataclasses
import tempfile
import time

from rich.console import Console
from rich.table import Table

from algonet.ran import build_data, build_trainer, load_config
from algonet.ran.build import template
from algonet.ran.evaluate import evaluate_meshes


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("config", nargs="?", default="examples/configs/ran_cpu.toml")
    parser.add_argument("--methods", nargs="+", default=["direct", "ran", "supervised"])
    parser.add_argument("--seconds", type=float, default=120.0, help="of training for each method, at most")
    arguments = parser.parse_args()
    config = load_config(arguments.config)
    held_out = build_data(config, "test")
    rows = {"template": (evaluate_meshes(None, held_out, template(config)), 0, 0.0)}
    for method in arguments.methods:
        chosen = dataclasses.replace(config, method=method)
        with tempfile.TemporaryDirectory() as folder:
            trainer = build_trainer(chosen, folder)
            started = time.perf_counter()
            trainer.fit(seconds=arguments.seconds)
            spent = time.perf_counter() - started
        start = template(config).to(next(trainer.model.parameters()).device)
        rows[method] = (evaluate_meshes(trainer.model, held_out, start), trainer.step, spent)
    table = Table(title=f"{len(held_out)} held-out shapes")
    for title in ("method", "voxel IoU", "Chamfer", "steps", "seconds"):
        table.add_column(title, justify="right")
    for method, (scores, steps, spent) in rows.items():
        table.add_row(method, f"{scores['iou']:.3f}", f"{scores['chamfer']:.3f}", str(steps), f"{spent:.0f}")
    Console().print(table)


if __name__ == "__main__":
    main()
