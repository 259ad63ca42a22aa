"""Fit the weights and biases of the C-infinity multiplication program on the products up to 6 x 6.

python examples/while_train.py
"""

from __future__ import annotations

import torch

from algonet.relax import Sech
from algonet.while_lang import WhileProgram


def main() -> None:
    numbers = torch.arange(1.0, 7.0)
    a, b = torch.meshgrid(numbers, numbers, indexing="ij")
    program = WhileProgram.library("multiply", Sech(2.0), trainable=True, max_iterations=200)
    optimizer = torch.optim.Adam(program.parameters(), lr=0.01)
    for step in range(1001):
        optimizer.zero_grad()
        error = program(x1=a, x2=b) - a * b
        loss = error.square().mean() + 1e-3 * program.regularization()
        loss.backward()
        if step % 200 == 0:
            print(f"step {step:4d}: mean error {error.abs().mean().item():.3f}, largest {error.abs().max().item():.3f}")
        optimizer.step()
    statements = [line.strip() for line in program.core.text.splitlines() if ":=" in line]
    for statement, weight, bias in zip(statements, program.weight.tolist(), program.bias.tolist(), strict=True):
        print(f"{statement:14}  weight {weight:+.3f}  bias {bias:+.3f}")


if __name__ == "__main__":
    main()
