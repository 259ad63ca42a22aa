"""Sorting supervision in small: Newton losses and the default, as far as a CPU gets in minutes.

Far from the protocol of `sort_digits`: two-digit numbers, pictures halved to 14 x 28, 16 and 32 channels, Adam at 10^-3, 1,000
steps of 20 sets, the last weights, 2,000 test sets. It shows how losses compare while training is young, and says nothing about
100,000 steps. Losses are those of `sort_digits`: `newton` and `fisher` are Newton losses around that of `smoothed-cdf`, with
Tikhonov's 2 and 0.1. The Hessian needs the 2: with less than its most negative eigenvalue, steps lead uphill.

Run: python -m experiments.sort_small --data FOLDER [--n 5 10] [--steps 1000] [--sorters smoothed-cdf ...]
"""

from __future__ import annotations

from experiments.sort_digits import Protocol, run


def main() -> None:
    small = Protocol(digits=2, halved=True, channels=(16, 32), rate=1e-3, tested=2_000, published=())
    run(
        __doc__,
        small,
        n=(5, 10),
        sorters=("smoothed-cdf", "newton", "fisher", "odd-even"),
        steps=1_000,
        batch=20,
        seeds=3,
    )


if __name__ == "__main__":
    main()
