"""Find the parameters of a simulation from its traces, seen through instruments that nobody calibrated.

python examples/ran_simulation.py [--quick | --steps 400]

A room loses heat, and a thermostat turns the heater on below its set point: a decision in every step, which `@smooth` makes a
probability. Instruments show the temperature with a gain, an offset and noise of their own.
"""

from __future__ import annotations

import argparse

import torch
from torch import Tensor

from algonet.ran import Box, solve_inverse
from algonet.smooth_python import smooth

LENGTH = 32


@smooth(steepness=20.0)
def room(wanted, leak):
    """The temperatures, from cold outside (0) on: heated below `wanted`, and a share `leak` lost in every step."""
    temperature = 0.0 * wanted
    trace = []
    for _ in range(LENGTH):
        temperature = temperature * (1.0 - leak)
        if temperature < wanted:
            temperature = temperature + 0.06
        trace = [*trace, temperature]
    return torch.stack(trace, -1)


def simulate(parameters: Tensor) -> Tensor:
    """Set points and leaks (B, 2) to traces (B, LENGTH)."""
    return room(parameters[:, 0], parameters[:, 1], batched=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--quick", action="store_true", help="100 steps: a rough answer")
    options = parser.parse_args()
    steps = min(options.steps, 100) if options.quick else options.steps
    box = Box([0.2, 0.005], [0.9, 0.05])
    torch.manual_seed(0)
    true = box.draw(264)
    with torch.no_grad():
        traces = simulate(true)
    gain = 0.5 + torch.rand(264, 1)
    seen = gain * traces + torch.randn(264, 1) + 0.02 * torch.randn(264, LENGTH)
    result = solve_inverse(simulate, seen[:200], parameters=box, steps=steps, progress=True)
    width = box.high - box.low
    off = ((result.reconstruct(seen[200:]).cpu() - true[200:]).abs() / width).mean(0)
    blind = ((box.low + width / 2 - true[200:]).abs() / width).mean(0)
    for name, found, middle in zip(("set point", "leak"), off.tolist(), blind.tolist(), strict=True):
        print(
            f"{name}: off by {found:.3f} of its range on 64 unseen traces (always answering the middle: {middle:.3f})"
        )
    for line in result.report:
        print(line)


if __name__ == "__main__":
    main()
