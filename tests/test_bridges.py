"""Arrays of other libraries, and layers inside their programs: the page `docs/bridges.md`."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from algonet import (
    Camera,
    Logistic,
    Mesh,
    SmoothRenderer,
    SoftRank,
    WhileProgram,
    icosphere,
    render_attributes,
    soft_max,
    soft_median,
    soft_sort,
)  # fmt: skip
from algonet.ranking import ndcg_loss

PAGE = Path(__file__).parents[1] / "docs" / "bridges.md"


def test_numpy_arrays_share_their_memory():
    array = np.array([[3.0, 1.0, 2.0]], dtype=np.float32)
    x = torch.from_dlpack(array)
    x[0, 0] = 0.5
    assert array[0, 0] == 0.5
    values = soft_sort(x).values
    assert np.shares_memory(np.from_dlpack(values), values.numpy())


def test_arrays_are_taken_where_a_tensor_is():
    array, ball, camera = np.array([3.0, 1.0, 2.0], dtype=np.float32), icosphere(1), Camera.look_at((0.0, 0.0, 3.0))
    tensor = torch.tensor(array)
    fixed = array.copy()
    fixed.flags.writeable = False
    vertices, faces = ball.vertices.numpy(), ball.faces.numpy()
    add, nodes = WhileProgram.library("add", backend="reference"), torch.eye(3)
    same = torch.testing.assert_close
    for given in (array, fixed):
        same(soft_sort(given, payload=np.eye(3, dtype=np.float32)).payload, soft_sort(tensor, payload=nodes).payload)
        same(SoftRank()(given), SoftRank()(tensor))
        same(soft_median(given, mask=np.array([True, False, True])), soft_median(tensor, mask=tensor != 1))
        same(Logistic(2.0)(given), Logistic(2.0)(tensor))
        same(soft_max(given, weights=given), soft_max(tensor, weights=tensor))
        same(ndcg_loss(tensor, given), ndcg_loss(tensor, tensor))
        same(add(given, x2=given), add(tensor, x2=tensor))
    pictures = [
        render_attributes(vertices, faces, vertices, camera, size=(8, 8)).image,
        SmoothRenderer(8)(Mesh(vertices, faces, vertex_colors=vertices), camera).silhouette,
    ]
    same(pictures[0], render_attributes(ball.vertices, ball.faces, ball.vertices, camera, size=(8, 8)).image)
    same(pictures[1], SmoothRenderer(8)(ball, camera).silhouette)
    with pytest.raises(TypeError, match="a floating tensor"):
        soft_sort(np.array([3, 1, 2]))


@pytest.mark.slow
def test_layers_in_a_jax_program(tmp_path):
    pytest.importorskip("jax")
    (code,) = re.findall(r"^```py\n(.*?)^```", PAGE.read_text("utf-8"), re.MULTILINE | re.DOTALL)
    code += """
x = jnp.array([[3.0, 1.0, 2.0, 0.0], [0.5, 0.1, 0.2, 0.9]])
t = torch.tensor(np.asarray(x)).requires_grad_()
values = soft_sort(t, relax=Logistic(2.0)).values
(slope,) = torch.autograd.grad((values * torch.arange(4.0)).sum(), t)
np.testing.assert_allclose(jax.jit(jax.grad(lambda x: (sort(x) * jnp.arange(4.0)).sum()))(x), slope, rtol=1e-5, atol=1e-6)
np.testing.assert_allclose(jax.vmap(sort)(x), values.detach(), rtol=1e-5, atol=1e-6)
"""
    (tmp_path / "program.py").write_text(code)
    done = subprocess.run([sys.executable, "program.py"], cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    assert re.search(r"the ball is 1\.(19|20|21) as large", done.stdout), done.stdout


@pytest.mark.slow
def test_arrays_of_jax_share_their_memory():
    jnp = pytest.importorskip("jax.numpy")
    vertices = jnp.asarray(icosphere(1).vertices.numpy())
    assert torch.from_dlpack(vertices).data_ptr() == vertices.unsafe_buffer_pointer()
