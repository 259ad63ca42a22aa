"""Run a program backwards: which x1 makes `x1 * 7` equal 30? Gradient descent through two counting loops.

python examples/while_inverse.py
"""

from __future__ import annotations

import argparse

import torch

from algonet.relax import Sech
from algonet.while_lang import WhileProgram


def main() -> None:
    argparse.ArgumentParser(description=__doc__).parse_args()
    program = WhileProgram.library("multiply", Sech(2.0))
    x1 = torch.tensor(1.0, requires_grad=True)
    optimizer = torch.optim.Adam([x1], lr=0.1)
    for step in range(201):
        optimizer.zero_grad()
        y = program(x1=x1, x2=7.0)
        (y - 30).square().backward()
        if step % 40 == 0:
            print(f"step {step:3d}: multiply(x1 = {x1.item():.4f}, x2 = 7) = {y.item():.4f}")
        optimizer.step()
    print(f"the C-infinity program gives 30 at x1 = {x1.item():.4f}; exactly it would be {30 / 7:.4f}")


if __name__ == "__main__":
    main()
