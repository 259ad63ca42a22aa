"""What other packages do not promise may go away: calls are slower then, and their results the same."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from algonet.core import tracing

CALLS = """
import torch

torch.set_num_threads(1)
from algonet import SmoothRenderer, smooth
from algonet.render import Camera, icosphere
from algonet.sorting import soft_sort
from algonet.while_lang import WhileProgram, load_program


@smooth
def leaky(x):
    if x > 0:
        return x
    return 0.1 * x


def gradient(function, x):
    value = function(x)
    return [*value.detach().flatten().tolist(), *torch.autograd.grad(value.sum(), x)[0].flatten().tolist()]


program, ball = WhileProgram(load_program("multiply")), icosphere(0)
found = [
    *gradient(lambda x: soft_sort(x).values.sin(), torch.tensor([3.0, 1.0, 2.0], requires_grad=True)),
    *gradient(lambda x: program(x1=x, x2=torch.tensor([4.0])), torch.tensor([3.0], requires_grad=True)),
    *gradient(leaky, torch.tensor(0.3, requires_grad=True)),
    *SmoothRenderer(4)(ball, Camera.look_at((0.0, 0.0, 3.0)))[0].flatten().tolist(),
]
print(" ".join(f"{x:.4f}" for x in found))
"""
#: Name -> what takes it away. `torch.func` transforms need the names that they are made of: those stay in torch itself.
TAKEN = {
    **{name: f"from algonet.core import tracing\ntracing.PRIVATE[{name!r}] = 'not.there'" for name in tracing.PRIVATE},
    "numba": "import numba\nimport numba.core.compiler_machinery as machinery\ndel machinery.register_pass",
}


def _run(before: str, folder: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": ":".join(sys.path)}  # the kernels that other tests compiled serve
    file = Path(folder, "calls.py")  # smooth functions are read from files
    file.write_text(f"{before}\n{CALLS}")
    return subprocess.run([sys.executable, str(file)], capture_output=True, text=True, env=environment, check=False)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    folder = str(tmp_path_factory.mktemp("cache"))
    return _run("", folder), folder


@pytest.mark.parametrize("name", TAKEN)
def test_without_a_private_part_calls_are_slower_and_the_same(name, whole):
    expected, folder = whole
    assert expected.returncode == 0, expected.stderr
    found = _run(TAKEN[name], folder)
    assert found.returncode == 0, found.stderr
    assert found.stdout == expected.stdout
    if name not in ("wrapped", "unwrap"):  # asked for under transforms alone
        assert found.stderr.count("results are the same.") == 1


def test_nothing_private_is_asked_for_at_import():
    script = "from algonet.core import tracing\nimport algonet\nprint(tracing._FOUND)"
    environment = {"PATH": "", "PYTHONPATH": ":".join(sys.path)}
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, env=environment, check=True)
    assert run.stdout == "{}\n"
