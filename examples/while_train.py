"""Fit the weights and biases of the C-infinity multiplication program on the products up to 6 x 6.

python examples/while_train.py
"""

from __future__ import annotations

import argparse

from algonet.relax import Sech
from algonet.while_lang import WhileProgram


def main() -> None:
    argparse.ArgumentParser(description=__doc__).parse_args()
    program = WhileProgram.library("multiply", Sech(2.0), trainable=True, max_iterations=200)
    print(program.fit_discrete(range(1, 7), held_out=range(7, 10), steps=1000))
    statements = [line.strip() for line in program.core.text.splitlines() if ":=" in line]
    for statement, weight, bias in zip(statements, program.weight.tolist(), program.bias.tolist(), strict=True):
        print(f"{statement:14}  weight {weight:+.3f}  bias {bias:+.3f}")


if __name__ == "__main__":
    main()
