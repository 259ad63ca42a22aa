"""Configurations and checkpoints of training runs."""

from __future__ import annotations

import itertools
import json
import shutil
from pathlib import Path

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from algonet.ran import load_config
from algonet.ran.build import load_model
from algonet.ran.checkpoints import save_checkpoint
from algonet.ran.config import RunConfig, from_dict

from .mutations import NOISE, NUMBERS, damaged
from .reading import budget, read_or_explain

ROOT = Path(__file__).parents[2]
CONFIGS = [path.read_bytes() for path in sorted((ROOT / "examples" / "configs").glob("*.toml"))]
TOML = (
    *NUMBERS,
    b"[]",
    b"[[",
    b"]",
    b'"',
    b"=",
    b"\n",
    b"1979-05-27",
    b"{a = 1}",
    b"'x'",
    b"[data]\n",
    b"kind",
    b"1_000",
    b"[" * 3000,
)
TINY = {
    "kind": "ifs", "data": {"size": 16}, "model": {"functions": 2, "width": 8, "base": 4, "translator_base": 4},
}  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("runs")


@given(st.one_of(NOISE, damaged(CONFIGS, TOML)))
@example(b"kind = " + b"[" * 3000)
@example(b"seed = 1" + b"0" * 400)
@budget(150)
def test_damaged_configuration(folder, data):
    path = folder / "run.toml"
    path.write_bytes(data)
    config = read_or_explain(lambda: load_config(path), names=path.name)
    if config is not None:
        assert from_dict(config.to_dict()) == config


@pytest.fixture(scope="module")
def checkpoint(folder) -> Path:
    """A small, whole checkpoint."""
    from algonet.ran.build import build_model

    config = from_dict(TINY)
    model = build_model(config).state_dict()
    return save_checkpoint(folder / "whole", 3, model, {"a": torch.zeros(2)}, {"description": config.to_dict()}, keep=1)


NUMBERS_OF_RUNS = itertools.count()


def _with(checkpoint: Path, name: str, data: bytes) -> Path:
    """A copy of the checkpoint in which one file holds `data`."""
    broken = checkpoint.parent / f"broken{next(NUMBERS_OF_RUNS)}"
    shutil.copytree(checkpoint, broken)
    (broken / name).write_bytes(data)
    return broken


def _load(path: Path) -> None:
    try:
        read_or_explain(lambda: load_model(path), names=path.name)
    finally:
        shutil.rmtree(path)


def test_the_whole_checkpoint_is_read(checkpoint):
    _, config = load_model(checkpoint)
    assert isinstance(config, RunConfig)


@pytest.mark.parametrize("name", ["state.json", "model.safetensors", "training.safetensors"])
def test_damaged_checkpoint(checkpoint, name):
    whole = (checkpoint / name).read_bytes()
    # Tensors are many and alike: damage lands in the header
    head, rest = (whole[:4000], whole[4000:]) if name.endswith("safetensors") else (whole, b"")

    @given(st.one_of(NOISE, damaged([head]).map(lambda data: data + rest)))
    @budget(25)
    def check(data: bytes) -> None:
        _load(_with(checkpoint, name, data))

    check()


@given(
    st.sampled_from(["step", "description"]), st.sampled_from([None, [], {}, "x", -1, 1e400, {"kind": 3}, {"data": []}])
)
@budget(16)
def test_any_value_in_the_state(checkpoint, key, value):
    state = json.loads((checkpoint / "state.json").read_text())
    _load(_with(checkpoint, "state.json", json.dumps({**state, key: value}).encode()))


def test_missing_files(checkpoint):
    for name in ("state.json", "model.safetensors", "training.safetensors"):
        broken = _with(checkpoint, name, b"")
        (broken / name).unlink()
        _load(broken)
