"""A model with a sort, a renderer and a WHILE-program leaves Python's classes behind: exported, saved, run elsewhere."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import algonet

ROOT = Path(__file__).parents[1]
#: The packages are imported for the operators that they register, and for nothing else.
ELSEWHERE = """
import sys, torch
import algonet.render, algonet.sorting, algonet.while_lang
folder = sys.argv[1]
graph = torch.export.load(f"{folder}/model.pt2").module()
x, picture, product, slope = torch.load(f"{folder}/results.pt")
found = graph(x.requires_grad_())
torch.testing.assert_close(found, (picture, product), rtol=1e-5, atol=1e-6)
(by_x,) = torch.autograd.grad(found[0].square().sum() + found[1].sum(), x)
torch.testing.assert_close(by_x, slope, rtol=1e-4, atol=1e-5)
assert not {"algonet.fit", "algonet.ran", "algonet.cli"} & sys.modules.keys()
print("same")
"""


class Model(nn.Module):
    """Balls whose sizes are the product of the two smallest of three numbers, as a WHILE-program multiplies them."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(3, 3)
        self.sort = algonet.SoftSort(algonet.Logistic(5.0))
        self.multiply = algonet.WhileProgram.library("multiply", algonet.Sech())
        self.renderer = algonet.SmoothRenderer(8)
        self.ball, self.camera = algonet.icosphere(0), algonet.Camera.look_at((0.0, 0.0, 3.0))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        numbers = self.sort(self.linear(x)).values.abs()
        product = self.multiply(numbers[:, 0], numbers[:, 1])
        vertices = self.ball.vertices * (1 + 0.1 * product)[:, None, None]
        return self.renderer(self.ball.replace(vertices=vertices), self.camera).rgb, product


@pytest.mark.slow
def test_exported_saved_and_run_in_another_process(tmp_path):
    model, x = Model(), torch.randn(2, 3, requires_grad=True)
    exported = torch.export.export(model, (x.detach(),))
    operators = {str(node.target) for node in exported.graph.nodes if "algonet" in str(node.target)}
    assert {name.split(".")[1].rsplit("_", 1)[0] for name in operators} >= {"run_while", "render_lit", "soft_counts"}
    torch.export.save(exported, tmp_path / "model.pt2")
    picture, product = model(x)
    (slope,) = torch.autograd.grad(picture.square().sum() + product.sum(), x)
    torch.save((x.detach(), picture.detach(), product.detach(), slope), tmp_path / "results.pt")
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "ALGONET_QUIET": "1"}
    command = [sys.executable, "-c", ELSEWHERE, str(tmp_path)]
    done = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert done.stdout == "same\n", done.stderr[-3000:]
