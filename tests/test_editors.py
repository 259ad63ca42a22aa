"""What an editor sees: names have types, layers' calls and smooth functions have their parameters, and mistakes are marked."""

from __future__ import annotations

import ast
import importlib
import json
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
    assert counted >= 13


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
