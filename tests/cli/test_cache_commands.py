"""`algonet cache` shows and clears the folder of kernels, `algonet warmup` fills it."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from algonet.cli import mount
from algonet.core.codegen import store
from algonet.core.operation import example_calls


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("ALGONET_CACHE", str(tmp_path / "kernels"))
    return tmp_path / "kernels"


def call(*arguments: str) -> str:
    result = CliRunner().invoke(mount(), list(arguments))
    assert result.exit_code == 0, result.output
    return result.output


def test_shows_and_clears(folder):
    store.write_sealed("algonet_generated_kernel", bytes(2**20))
    assert f"{folder}: 1 files, 1.0 MiB of at most 512 MiB" in call("cache")
    assert json.loads(call("cache", "--json")) == {"folder": str(folder), "files": 1, "bytes": 2**20 + 32, "removed": 0}
    assert "removed 1 files" in call("cache", "--clear")
    assert not list(folder.iterdir())


def test_warmup_runs_every_operation():
    # in the folder that other tests use too: what it compiles, they need not
    said = call("warmup")
    for operation in example_calls("cpu"):
        assert f"{operation} on cpu (numba)" in said, said
