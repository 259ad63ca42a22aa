"""Files of iterated function systems."""

from __future__ import annotations

import itertools
import json

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from algonet.ifs import IFS

from .mutations import NOISE, NUMBERS, damaged
from .reading import budget, read_or_explain

WORDS = (
    *NUMBERS,
    b"null",
    b"NaN",
    b"Infinity",
    b"[]",
    b"{}",
    b"[[",
    b"]",
    b",",
    b'"x"',
    b"[" * 5000,
    b"1e308",
    b"-1e308",
)
VALID = IFS.preset("sierpinski", points=16).to_dict()
VALUES = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=4)),
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(st.text(max_size=3), inner, max_size=3)),
    max_leaves=12,
)


@pytest.fixture(scope="module")
def load(tmp_path_factory):
    folder = tmp_path_factory.mktemp("systems")
    numbers = itertools.count()

    def run(data: bytes) -> IFS | None:
        path = folder / f"s{next(numbers)}.json"
        path.write_bytes(data)
        ifs = read_or_explain(lambda: IFS.load(path, points=16), names=path.name)
        path.unlink()
        if ifs is not None:
            assert torch.isfinite(ifs((4, 4), backend="reference")).all()
        return ifs

    return run


def test_the_undamaged_file_is_read(load):
    assert load(json.dumps(VALID).encode()) is not None


@given(st.one_of(NOISE, damaged([json.dumps(VALID).encode()], WORDS)))
@budget(150)
def test_damaged_system(load, data):
    load(data)


@given(st.sampled_from(sorted(VALID)), VALUES)
@budget(150)
def test_any_value_under_any_key(load, key, value):
    load(json.dumps({**VALID, key: value}).encode())


@pytest.mark.parametrize(
    "changes",
    [
        {"parameters": [[0.0] * 6] * 300},
        {"parameters": [[1e38] * 6] * 3},
        {"parameters": [], "weights": []},
        {"parameters": [[]], "weights": [1.0]},
        {"parameters": [[float("nan")] * 6] * 3},
        {"weights": [0, 0, 0]},
        {"weights": [float("inf"), 1, 1]},
        {"extent": [0, 0, 0, 0]},
        {"extent": [1, 0, 1, 0]},
        {"extent": [float("nan")] * 4},
        {"extent": [-1e308, 1e308, 0, 1]},
        {"exposure": float("nan")},
        {"exposure": float("inf")},
        {"exposure": 1e308},
        {"colours": [[1e308]] * 3},
        {"version": 3},
        {"version": "two"},
        {"exposure": -1},
        {"seed": 10**30},
        {"seed": -(10**30)},
    ],
    ids=str,
)
def test_wrong_values_are_refused(load, changes):
    assert load(json.dumps({**VALID, **changes}).encode()) is None
