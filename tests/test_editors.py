"""What an editor sees: names have types, layers' calls and smooth functions have their parameters, and mistakes are marked."""

from __future__ import annotations

import ast
import importlib
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from torch import nn

import algonet

ROOT = Path(__file__).parents[1]

#: A user's script. What follows `# wrong:` is expected in the message; every other line is right.
SCRIPT = """
import torch
from torch import Tensor

import algonet
from algonet import IFS, Camera, Logistic, SmoothRenderer, SoftSort, SoftTopK, icosphere, smooth, soft_rank, soft_sort

x = torch.randn(4, 8)
soft_sort(x, relax=Logistic(10.0)).values.sum()
soft_sort(x, steepness=10.0)  # wrong: steepness
layer = SoftSort(Logistic(20.0))
layer(x).values.sum()
layer(x).sorted  # wrong: sorted
layer(x, payoff=x)  # wrong: payoff
SoftTopK(3)(x).indices.sum()
soft_rank(x).sum()


@smooth(relax=Logistic(10.0))
def clamp(value: Tensor, low: Tensor) -> Tensor:
    return value if value > low else low


@smooth
def larger(a: Tensor, b: Tensor) -> Tensor:
    return a if a > b else b


clamp(x, x).sum()
clamp(x, x, batched=True)
larger(x, b=x).mean()
larger(x)  # wrong: No overloads
clamp(x, hight=x)  # wrong: No overloads
picture = SmoothRenderer(64)(icosphere(2), Camera.look_at((0.0, 0.0, 3.0)))
picture.rgb.mean()
picture.rbg  # wrong: rbg
IFS.preset("fern")(64, sigma=1.0).mean()
algonet.soft_srot  # wrong: soft_srot
"""


#: Ten lines per domain, for which a checker asks nothing more of the user: every type is known.
STRICT = """
# pyright: strict
import torch
from torch import Tensor, nn
from torch.nn.functional import mse_loss

from algonet import (
    IFS, Anneal, Camera, Cauchy, FilteredCoverage, Insert, Logistic, Residual, Sech, SmoothRenderer, SoftMedian, SoftRank,
    SoftSort, SoftTopK, StudentT, WhileProgram, fit_camera, fit_ifs, fit_mesh, icosphere, sensitivity, smooth, soft_median,
    soft_rank, soft_sort, soft_topk,
)
from algonet.nn import FiniteDifferences, SmoothDepth
from algonet.ran import Box, solve_inverse
from algonet.ranking import NewtonLoss, ndcg, ndcg_loss
from algonet.render import Mesh, render_hard, torus
from algonet.smooth_python import Particles
from algonet.speech import SmoothSynthesizer, write_wav

x = torch.randn(4, 8, requires_grad=True)

# relax
relax = Logistic(10.0)
chance: Tensor = relax(x)
tail: Tensor = StudentT(df=8.0, scale=1.0).tail(x.abs())
layer = SoftSort(Cauchy(20.0))
steepness: Tensor = layer.steepness
anneal = Anneal(1.0, 40.0, steps=100).attach(layer)
anneal.step()
print(layer.steepness.item(), chance.mean(), tail.sum())

# sorting
first: Tensor = soft_sort(x, payload=torch.eye(8).expand(4, 8, 8)).payload
none: None = soft_sort(x).payload
moved: Tensor = layer(x, payload=x).payload
values: Tensor = layer(x).values
best: Tensor = SoftTopK(3)(x).indices + soft_topk(x, 3).values
ranks: Tensor = soft_rank(x, relax=relax) + SoftRank()(x)
middle: Tensor = soft_median(x) + SoftMedian()(x)
total = first.sum() + moved.sum() + values.sum() + best.sum() + ranks.sum() + middle.sum()
print(torch.autograd.grad(total, x)[0].abs().sum(), none, steepness)

# WHILE-programs
program = WhileProgram.library("multiply", Sech(2.0), max_iterations=60)
product: Tensor = program(x1=x, x2=x)
left: Tensor = program.run(x1=x, x2=x).remaining
own = WhileProgram("x0 := x1 + 1", outputs=("x0", "x1"))
one, other = own(x1=x)
slope: Tensor = torch.autograd.grad(product.sum(), x)[0]
learned = WhileProgram.library("add", trainable=True)
penalty: Tensor = learned.regularization()
print(left.max(), one.mean(), other.mean(), slope.abs().sum(), penalty.item())


# Python
@smooth(relax=Logistic(10.0))
def clamp(value: Tensor, low: Tensor) -> Tensor:
    return value if value > low else low


@smooth
def price(distance: float) -> float:
    return 2.0 if distance < 1.0 else 2.0 + 1.5 * (distance - 1.0)


clamped: Tensor = clamp(x, x.mean(), batched=True)
paid: Tensor = price(x, batched=True, steepness=4.0)
again: Tensor = price(x, paths=Particles(64))
exact: float = price.crisp(2.5)
print(clamp(x[0, 0], x[0, 1]).item(), clamped.shape, paid.mean(), again.mean(), exact)

# fractals
fern = IFS.preset("fern", points=1000)
picture: Tensor = fern(64, sigma=1.0)
weights: nn.Parameter = fern.parameters_
slopes: Tensor = torch.autograd.grad(picture.square().mean(), weights)[0]
crisp: Tensor = fern.crisp(64)
with torch.no_grad():
    weights.sub_(0.01 * slopes)
found = fit_ifs(picture.detach(), functions=3)
similar: float = found.similarity
print(crisp.shape, weights.shape, similar)

# rendering
camera = Camera.look_at((0.0, 1.0, 3.0), fov=45.0)
renderer = SmoothRenderer(64, FilteredCoverage(StudentT(scale=1.0)))
seen = renderer(icosphere(2), camera)
loss: Tensor = seen.rgb.mean() + seen.silhouette.mean() + seen.depth.mean() + renderer.scale
ring: Mesh = torus()
hard: Tensor = render_hard(ring.vertices, ring.faces, ring.vertices, camera, size=(32, 32)).silhouette
fitted = fit_mesh(hard[None], Camera.look_at(torch.tensor([[0.0, 1.0, 3.0]])), steps=5)
place: Camera = fit_camera(ring, hard).camera
fitted.mesh.save("fitted.obj")
print(loss.item(), fitted.history[-1]["pictures"], place.position)

# layers and what they are used for
def ordered(items: Tensor) -> Tensor:
    return soft_sort(items).values


network = nn.Sequential(nn.Linear(8, 8), Insert(ordered), nn.Linear(8, 1))
both: Tensor = Residual(ordered, nn.Linear(4, 4))(x)
steps: Tensor = FiniteDifferences()(x)
deep: Tensor = SmoothDepth([nn.Tanh(), nn.Tanh()], depth=1.5)(x)
share: float = sensitivity(network, "1", [(x, x[:, :1])], mse_loss, against=["0"]).share
print(both.shape, steps.shape, deep.shape, share)

# speech
synthesizer = SmoothSynthesizer(sample_rate=16_000)
score = synthesizer.score("halo")
speech = synthesizer(*score)
waveform: Tensor = speech.waveform
quiet: Tensor = synthesizer(score.phonemes, score.durations, score.pitch, 0.5 * score.loudness).mel
write_wav("halo.wav", waveform, synthesizer.sample_rate)
print(synthesizer.names[0], synthesizer.formants.shape, quiet.shape)

# ranking
grades = torch.rand(4, 8)
lost: Tensor = ndcg_loss(x, grades) + NewtonLoss(ndcg_loss)(x, grades)
metric: Tensor = ndcg(x, grades)
print(lost.sum().item(), metric.mean())


# the backward AlgoNet
def bump(place: Tensor) -> Tensor:
    return torch.sigmoid(8 * (torch.linspace(-1, 1, 16) - place))


solved = solve_inverse(bump, bump(torch.rand(64, 1)), parameters=Box([0.0], [1.0]), method="direct", steps=5)
guess: Tensor = solved.reconstruct(bump(torch.rand(1, 1)))
print(guess.mean(), solved)
"""


def _pyright(folder: Path, text: str) -> dict[int, str]:
    """The message of each line that has an error."""
    script = folder / "script.py"
    script.write_text(text, encoding="utf-8")
    (folder / "pyrightconfig.json").write_text(
        json.dumps({"extraPaths": [str(ROOT / "src")], "reportUnusedExpression": False})
    )
    command = [sys.executable, "-m", "pyright", "--outputjson", "--pythonpath", sys.executable, str(script)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=folder, timeout=300)
    found = json.loads(done.stdout)["generalDiagnostics"]
    return {d["range"]["start"]["line"]: d["message"] for d in found if d["severity"] == "error"}


@pytest.mark.slow
def test_mistakes_are_found_and_nothing_else(tmp_path):
    pytest.importorskip("pyright")
    found = _pyright(tmp_path, SCRIPT)
    expected = {
        number: line.partition("# wrong: ")[2] for number, line in enumerate(SCRIPT.split("\n")) if "# wrong: " in line
    }
    assert found.keys() == expected.keys(), found
    for number, word in expected.items():
        assert word in found[number], found[number]


@pytest.mark.slow
def test_scripts_of_every_domain_are_known_to_a_strict_checker(tmp_path):
    pytest.importorskip("pyright")
    assert _pyright(tmp_path, STRICT) == {}
    wrong = STRICT.replace("none: None = soft_sort(x).payload", "none: None = soft_sort(x, payload=x).payload")
    assert len(_pyright(tmp_path, wrong)) == 1, "it looks"


@pytest.mark.slow
def test_the_first_example_of_the_readme_has_types(tmp_path):
    pytest.importorskip("pyright")
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text("utf-8"), re.DOTALL)
    assert "payload=" in blocks[0]
    assert _pyright(tmp_path, blocks[0]) == {}


def test_what_editors_see_is_what_there_is():
    """The imports under TYPE_CHECKING are those of the table that loads names at run time."""
    tree = ast.parse(Path(algonet.__file__).read_text(encoding="utf-8"))
    block = next(node for node in tree.body if isinstance(node, ast.If))
    seen = {
        line.module: [alias.name for alias in line.names] for line in block.body if isinstance(line, ast.ImportFrom)
    }
    aliases = [alias for line in block.body if isinstance(line, ast.ImportFrom) for alias in line.names]
    assert all(alias.asname == alias.name for alias in aliases), "without `as`, a name is not exported"
    assert {home: sorted(names) for home, names in seen.items()} == {
        home: sorted(names) for home, names in algonet._NAMES.items()
    }


def test_all_layers_are_at_the_top():
    for home in algonet._NAMES:
        module = importlib.import_module(home)
        layers = [
            name
            for name in module.__all__
            if isinstance(getattr(module, name), type) and issubclass(getattr(module, name), nn.Module)
        ]
        # A base class; what the topology layers leave behind, an ordinary network; what a decorator and `to_network` make;
        # a part of `solve_inverse`
        elsewhere = ("SoftModule", "Graph", "SmoothProgram", "WhileNetwork", "Box")
        missing = [name for name in layers if name not in algonet.__all__ and name not in elsewhere]
        assert not missing, f"{home}: {missing}"


def test_layers_are_called_as_they_run():
    """What stands under TYPE_CHECKING for `__call__` is `forward`: pyright takes nn.Module's untyped one otherwise."""
    counted = 0
    for path in (ROOT / "src").rglob("*.py"):
        classes = [node for node in ast.walk(ast.parse(path.read_text("utf-8"))) if isinstance(node, ast.ClassDef)]
        for node in classes:
            checked = [
                f for part in node.body if isinstance(part, ast.If) for f in part.body if isinstance(f, ast.FunctionDef)
            ]
            calls = [f for f in checked if f.name == "__call__"]
            forwards = [f for f in node.body if isinstance(f, ast.FunctionDef) and f.name == "forward"]
            for call, forward in zip(calls, forwards, strict=True) if calls else ():
                assert ast.dump(call.args) == ast.dump(forward.args), f"{path.name}: {node.name}"
                assert ast.dump(call.returns) == ast.dump(forward.returns), f"{path.name}: {node.name}"
                counted += 1
            counted += any("__call__ = forward" in ast.unparse(part) for part in node.body if isinstance(part, ast.If))
    assert counted >= 9


@pytest.mark.parametrize("call", ["soft_sort", "soft_rank", "soft_median", "SoftSort", "SoftTopK"])
@pytest.mark.parametrize(
    ("keyword", "said"), [("steepness", r"relax=Logistic\(10\)"), ("temperature", r"relax=Logistic\(1 / 10\)")]
)
def test_a_steepness_beside_relax_is_answered(call, keyword, said):
    with pytest.raises(TypeError, match=f"^{call}: no `{keyword}` here: .*{said}"):
        getattr(algonet, call)(2, **{keyword: 10})


def test_a_misspelt_name_is_answered():
    with pytest.raises(AttributeError, match=r"has no attribute 'soft_srot'; did you mean soft_sort\?"):
        algonet.soft_srot  # noqa: B018
