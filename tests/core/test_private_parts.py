"""What other packages do not promise may go away: calls are slower then, and their results the same."""

from __future__ import annotations

import os
import subprocess
import sys

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
    "nothing": "",
    **{name: f"from algonet.core import tracing\ntracing.PRIVATE[{name!r}] = 'not.there'" for name in tracing.PRIVATE},
    "numba": "import numba.core.caching as caching\ndel caching.CompileResultCacheImpl",
}
#: A child for each, forked where the libraries are loaded and nothing was called: to load them takes longer than the calls.
FORKS = """
import os, runpy, sys

import algonet, numba, torch
from algonet.core import tracing

assert tracing._FOUND == {}
assert "algonet.core.codegen.numba_private" not in sys.modules
for name, before in eval(sys.stdin.read()).items():
    if (child := os.fork()) == 0:
        for stream, descriptor in (("out", 1), ("err", 2)):
            os.dup2(os.open(f"{name}.{stream}", os.O_WRONLY | os.O_CREAT), descriptor)
        exec(before)
        runpy.run_path("calls.py", run_name="__main__")
        sys.stdout.flush()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0, name
"""


@pytest.fixture(scope="module")
def ran(tmp_path_factory):
    """The folder with what each of them printed."""
    folder = tmp_path_factory.mktemp("calls")
    (folder / "calls.py").write_text(CALLS)  # smooth functions are read from files
    # The kernels that other tests compiled serve
    environment = {**os.environ, "PYTHONPATH": ":".join(sys.path)}
    command = [sys.executable, "-c", FORKS]
    done = subprocess.run(
        command, input=repr(TAKEN), cwd=folder, capture_output=True, text=True, env=environment, check=False
    )
    return folder, "".join([done.stderr, *(path.read_text() for path in folder.glob("*.err"))])


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.parametrize("name", [name for name in TAKEN if name != "nothing"])
def test_without_a_private_part_calls_are_slower_and_the_same(name, ran):
    folder, said = ran
    assert (folder / f"{name}.out").exists(), said
    assert (folder / f"{name}.out").read_text() == (folder / "nothing.out").read_text() != "", said
    if name not in ("wrapped", "unwrap"):  # asked for under transforms alone
        assert (folder / f"{name}.err").read_text().count("results are the same.") == 1


def test_nothing_private_is_asked_for_at_import():
    script = "from algonet.core import tracing\nimport algonet\nprint(tracing._FOUND)"
    environment = {"PATH": "", "PYTHONPATH": ":".join(sys.path)}
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, env=environment, check=True)
    assert run.stdout == "{}\n"
