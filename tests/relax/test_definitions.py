"""Every relaxation against its printed definition, in many digits: extreme arguments, extreme parameters, each precision."""

from __future__ import annotations

import mpmath as mp
import pytest
import torch

from algonet.relax import (
    CONORMS,
    EXITS,
    NOISES,
    SIGMOIDS,
    AczelAlsina,
    BoundedSum,
    Dombi,
    Frank,
    Hamacher,
    SchweizerSklar,
    SmoothStep,
    SmoothTent,
    StudentT,
    Yager,
)


def _step(k, t):
    return mp.betainc(k + 1, k + 1, 0, min(max(t, 0), 1), regularized=True)


def _bump(t):
    return mp.mpf(t >= 1) if not 0 < t < 1 else 1 / (1 + mp.exp(1 / t - 1 / (1 - t)))


#: r(z), phi(x), tail(r), or the dual t-norm of x = 1 - a and y = 1 - b.
DEFINITIONS = {
    "Logistic": lambda _, z: 1 / (1 + mp.exp(-z)),
    "Gaussian": lambda _, z: mp.erfc(-z / mp.sqrt(2)) / 2,
    "Cauchy": lambda _, z: mp.mpf(1) / 2 + mp.atan(z) / mp.pi,
    "Gudermannian": lambda _, z: 2 / mp.pi * mp.atan(mp.exp(z)),
    "Bump": lambda _, z: _bump((1 + z) / 2),
    "SmoothStep": lambda s, z: _step(s.k, (1 + z) / 2),
    "Laplace": lambda _, z: 1 - mp.exp(-z) / 2 if z > 0 else mp.exp(z) / 2,
    "Reciprocal": lambda _, z: (1 + z / (2 + abs(z))) / 2,
    "Optimal": lambda _, z: z + 0.5 if abs(z) <= 0.25 else (1 - 1 / (16 * z) if z > 0 else -1 / (16 * z)),
    "GumbelMax": lambda _, z: mp.exp(-mp.exp(-z)),
    "GumbelMin": lambda _, z: 1 - mp.exp(-mp.exp(z)),
    "Heaviside": lambda _, z: mp.mpf(z >= 0),
    "Sech": lambda _, x: 1 - mp.sech(2 * x),
    "Tent": lambda _, x: min(mp.mpf(1), abs(x)),
    "SmoothTent": lambda e, x: _step(e.k, abs(x)),
    "BumpExit": lambda _, x: _bump(abs(x)),
    "GaussianNoise": lambda _, r: mp.exp(-r * r / 2),
    "StudentT": lambda n, r: (1 + r * r / mp.mpf(n.df)) ** (-mp.mpf(n.df) / 2),
    "Probabilistic": lambda _, x, y: x * y,
    "Maximum": lambda _, x, y: min(x, y),
    "Einstein": lambda _, x, y: x * y / (2 - x - y + x * y),
    "Hamacher": lambda p, x, y: x * y / (p + (1 - p) * (x + y - x * y)),
    "Frank": lambda p, x, y: mp.log(1 + (p**x - 1) * (p**y - 1) / (p - 1)) / mp.log(p),
    "Yager": lambda p, x, y: 1 - min(mp.mpf(1), ((1 - x) ** p + (1 - y) ** p) ** (1 / p)),
    "AczelAlsina": lambda p, x, y: mp.exp(-(((-mp.log(x)) ** p + (-mp.log(y)) ** p) ** (1 / p))),
    "Dombi": lambda p, x, y: 1 / (1 + ((1 / x - 1) ** p + (1 / y - 1) ** p) ** (1 / p)),
    "SchweizerSklar": lambda p, x, y: (x**p + y**p - 1) ** (1 / p),
}
WIDE = [torch.float32, torch.float64]
ALL = [*WIDE, torch.float16, torch.bfloat16]
POINTS = [0.0, 1e-9, 1e-4, 0.1, 0.24, 0.5, 0.9, 0.99, 1.0, 3.0, 12.0, 30.0, 60.0]
_ids = {"ids": repr}


def _error(found: torch.Tensor, exact) -> float:
    """The relative error in rounding steps. What is below the smallest normal number counts as that."""
    limits = torch.finfo(found.dtype)
    return float(abs(mp.mpf(found.item()) - exact) / max(abs(exact), mp.mpf(limits.tiny)) / limits.eps)


@pytest.mark.parametrize("dtype", ALL)
@pytest.mark.parametrize(
    "relax",
    [kind() for kind in (*SIGMOIDS, *EXITS, *NOISES)]
    + [SmoothStep(0), SmoothStep(20), SmoothTent(5), StudentT(0.5), StudentT(1e8)],
    **_ids,
)
def test_curves_follow_their_definitions(relax, dtype):
    definition = DEFINITIONS[type(relax).__name__]
    x = torch.tensor([-p for p in POINTS[::-1]] + POINTS, dtype=dtype)
    values = relax.tail(x) if hasattr(relax, "tail") else relax(x)
    logs = relax.log(x) if hasattr(relax, "log") else None
    with mp.workdps(60):
        for i, z in enumerate(x.tolist()):
            exact = definition(relax, mp.mpf(z))
            # Sigmoids add to 1/2: their errors are those of 1
            wanted = [(values[i], exact)]
            if logs is not None and exact > 1e-30:  # powers in a polynomial step underflow before it does
                wanted.append((logs[i], mp.log(exact)))
            for found, truth in wanted:
                assert _error(found, truth) < 40 or abs(found.item() - truth) < 4 * torch.finfo(dtype).eps, (z, found)


@pytest.mark.parametrize("kind", SIGMOIDS, ids=lambda kind: kind.__name__)
def test_logarithms_are_finite_in_half_precision(kind):
    x = torch.tensor([-60000.0, -300.0], dtype=torch.float16)
    assert kind(steepness=10.0).log(x).isfinite().all()


CONORM_CASES = [
    *(kind() for kind in CONORMS if kind is not BoundedSum),
    *(SchweizerSklar(p) for p in (-1e-30, -1e-6, -100.0, -1e30)),
    *(Frank(p) for p in (1e-30, 1e-20, 1e-8, 1 - 1e-12, 1 + 1e-12, 1.001, 1e8, 1e300)),
    *(Hamacher(p) for p in (0, 1e-30, 1e-6, 1e3, 1e30)),
    *(family(p) for family in (Yager, AczelAlsina, Dombi) for p in (1.0, 1.5, 100.0, 1e30)),
]
PAIRS = [
    (0.6, 0.6),
    (0.1, 0.2),
    (0.999, 0.3),
    (1e-4, 1e-5),
    (1e-9, 0.5),
    (0.3, 0.30001),
    (1 - 1e-6, 1 - 1e-6),
    (0.9, 0.0),
]


@pytest.mark.parametrize("dtype", WIDE)
@pytest.mark.parametrize("conorm", CONORM_CASES, **_ids)
def test_conorms_follow_their_definitions(conorm, dtype):
    definition, p = DEFINITIONS[type(conorm).__name__], mp.mpf(getattr(conorm, "p", 0))
    with mp.workdps(120):
        exact = lambda a, b: max(a, b) if not a or not b else 1 - definition(p, 1 - mp.mpf(a), 1 - mp.mpf(b))  # noqa: E731
        for pair in PAIRS:
            events = torch.tensor(pair, dtype=dtype, requires_grad=True)
            joined = conorm.reduce(events)
            (slope,) = torch.autograd.grad(joined, events)
            a, b = events.tolist()
            assert _error(joined, exact(a, b)) < 50, pair
            assert slope.isfinite().all()
            # Where a family is nearly the maximum, equal events are a kink
            if min(pair) > 1e-3 and max(pair) < 0.9 and (abs(a - b) > 1e-3 or 0 < abs(p) < 1e3):
                step = mp.mpf(10) ** -30
                slopes = [exact(mp.mpf(a) + step, b), exact(a, mp.mpf(b) + step)]
                slopes = [float((after - exact(a, b)) / step) for after in slopes]
                assert slope.tolist() == pytest.approx(slopes, rel=1e-3, abs=1e-3), pair


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("conorm", CONORM_CASES, **_ids)
def test_both_and_either_keep_the_digits_of_small_and_rounded_events(conorm, dtype):
    definition, p = DEFINITIONS[type(conorm).__name__], mp.mpf(getattr(conorm, "p", 0))
    with mp.workdps(120):
        for pair in [(0.0015, 0.9), (0.0015, 0.6), (0.03, 0.02), (0.99, 0.97)]:
            a, b = (torch.tensor(v, dtype=dtype) for v in pair)
            x, y = mp.mpf(a.item()), mp.mpf(b.item())
            for found, exact in [
                (conorm.both(a, b), definition(p, x, y)),
                (conorm(a, b), 1 - definition(p, 1 - x, 1 - y)),
            ]:
                assert _error(found, exact) < 50 or abs(found.item() - exact) < 1e-11, pair
