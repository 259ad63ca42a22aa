"""The rows of the transform matrix: every public operation, with typical inputs."""

from __future__ import annotations

from algonet import relax
from algonet.nn import finite_differences
from helpers.contract import Case, normal, uniform

from .transforms import Operation

PURE = {
    "CPU kernel": "a handful of torch operations; nothing to fuse",
    "GPU kernel": "a handful of torch operations; nothing to fuse",
}


def _weighted(batch, dtype, generator):
    (x,), (w,) = normal(4)(batch, dtype, generator), uniform(4, low=0.2)(batch, dtype, generator)
    return x, w


def _pure(name, function, inputs) -> Operation:
    return Operation(Case(name, function, inputs), why=PURE)


OPERATIONS: list[Operation] = [
    _pure("sigmoids (Logistic)", relax.Logistic(2.0), normal(4)),
    _pure("exits (Sech)", relax.Sech(2.0), normal(4)),
    _pure("noise (StudentT)", relax.StudentT(8).tail, uniform(4, low=0.1, high=3.0)),
    _pure("t-conorms (Probabilistic)", relax.Probabilistic().reduce, uniform(4, low=0.05, high=0.9)),
    _pure("weighted_softmax", relax.weighted_softmax, _weighted),
    _pure("soft_max", lambda x: relax.soft_max(x, steepness=2.0), normal(4)),
    _pure("soft_argmax", lambda x: relax.soft_argmax(x, steepness=2.0), normal(4)),
    _pure("finite_differences", lambda x: finite_differences(x, (-2, -1)), normal(3, 4)),
]
