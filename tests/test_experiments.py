"""The experiments run on data made on the spot, and their page follows their records. Nothing is trained for real here."""

from __future__ import annotations

import argparse
import importlib
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import ClassVar

import pytest
import torch
from PIL import Image

from algonet import Logistic, OddEven
from algonet.ifs import area_weights

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))  # experiments/ is not installed

from experiments import fractals, harness, page, shortest_paths, sort_digits  # noqa: E402
from experiments.__main__ import names  # noqa: E402
from experiments.harness import Checkpoint, mnist  # noqa: E402


def run(*arguments: str, timeout: int = 600) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    return subprocess.run(
        [sys.executable, "-m", *arguments], cwd=ROOT, env=environment, capture_output=True, text=True, timeout=timeout
    )


class Watched(argparse.Namespace):
    """Options that know which of them were read; setting one, as parsers and quick runs do, is not reading it."""

    read: ClassVar[set[str]] = set()

    def __getattribute__(self, name: str) -> object:
        Watched.read.add(name)
        return super().__getattribute__(name)


@pytest.mark.slow
@pytest.mark.parametrize("name", names())
def test_quick_run(name, tmp_path, monkeypatch):
    """In this process: loading torch a dozen times would take longer than half of them do."""
    monkeypatch.chdir(ROOT)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")  # for those that start further processes
    monkeypatch.setattr(sys, "argv", [name, "--quick", "--json", str(tmp_path / "rows.json")])
    options, parse = Watched(), argparse.ArgumentParser.parse_args

    def watched(parser: argparse.ArgumentParser) -> argparse.Namespace:
        parse(parser, namespace=options)
        Watched.read.clear()  # the parser looks at all of them
        return options

    monkeypatch.setattr(argparse.ArgumentParser, "parse_args", watched)
    importlib.import_module(f"experiments.{name}").main()
    assert not set(vars(options)) - Watched.read, "options that nothing reads"
    content = json.loads((tmp_path / "rows.json").read_text())
    assert content["rows"]
    assert {"cpu", "gpu", "torch", "algonet", "date"} <= set(content["machine"])


def test_missing_data_is_one_line():
    done = run("experiments.sort_digits")
    assert done.returncode == 2
    assert "--data is missing" in done.stderr.splitlines()[-1]


@pytest.mark.parametrize(
    ("name", "option"), [("sort_digits", "sorters"), ("ran", "problems"), ("programs", "problems")]
)
def test_wrong_choices_are_one_line(name, option, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", [name, "--quick", f"--{option}", "bananas"])
    with pytest.raises(SystemExit):
        importlib.import_module(f"experiments.{name}").main()
    assert "invalid choice: 'bananas'" in capsys.readouterr().err.splitlines()[-1]


@pytest.mark.parametrize(("name", "option"), [("routing", "steps"), ("learning_to_rank", "seeds"), ("pose", "poses")])
def test_counts_below_one_are_one_line(name, option, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", [name, "--quick", f"--{option}", "0"])
    with pytest.raises(SystemExit):
        importlib.import_module(f"experiments.{name}").main()
    assert f"--{option}: must be at least 1, got 0" in capsys.readouterr().err


def test_meshes_that_are_not_there_are_one_line(tmp_path):
    from benchmarks.render_calls import mesh_rows

    with pytest.raises(SystemExit, match="holds no mesh files"):
        next(mesh_rows(tmp_path / "none", "cpu", quick=True, seconds=0.1))


def test_wrong_folder_is_one_line(tmp_path):
    with pytest.raises(SystemExit, match="has no train-images-idx3-ubyte"):
        harness.mnist(tmp_path, train=True)


def test_digits_are_read_from_folders_of_images(tmp_path):
    for digit in range(10):
        (tmp_path / "testing" / str(digit)).mkdir(parents=True)
        Image.new("RGB", (28, 28), (digit, digit, digit)).save(tmp_path / "testing" / str(digit) / "a.png")
    pictures, labels = harness.mnist(tmp_path, train=False)
    assert labels.tolist() == list(range(10))
    torch.testing.assert_close(pictures, (labels / 255)[:, None, None].expand(-1, 28, 28))
    with pytest.raises(SystemExit, match="has no train-images-idx3-ubyte"):
        harness.mnist(tmp_path, train=True)


def test_a_run_goes_on_from_its_checkpoint(tmp_path):
    import torch

    kept = harness.Checkpoint(tmp_path, "run")
    assert kept.load() is None
    kept.save({"x": torch.ones(2), "done": 3}, now=True)
    again = harness.Checkpoint(tmp_path, "run").load()
    assert again is not None
    assert again["done"] == 3
    assert again["x"].tolist() == [1, 1]


def test_parts_of_a_record_are_joined():
    def part(gpu: str, seeds: int, *rows: tuple[str, float]) -> dict:
        found = [{"name": n, "value": v, "unit": "score", "column": "x", "by": "algonet", "note": ""} for n, v in rows]
        return {"machine": {"cpu": "c", "gpu": gpu}, "options": {"steps": 10, "seeds": seeds}, "rows": found}

    found = harness.join([part("g", 1, ("a", 1.0), ("b", 2.0)), part("g", 3, ("b", 3.0), ("c", 4.0))])
    assert [(row["name"], row["value"]) for row in found["rows"]] == [("a", 1.0), ("b", 3.0), ("c", 4.0)]
    assert found["options"] == {"steps": 10}
    with pytest.raises(SystemExit, match="one kind of machine"):
        harness.join([part("g", 1), part("h", 1)])


def test_page_is_in_step_with_the_records():
    assert page.PAGE.read_text(encoding="utf-8") == page.markdown(), "run `python -m experiments --page`"


@pytest.mark.parametrize("name", ["experiments", "benchmarks"])
def test_links_to_sections_of_made_pages_lead_somewhere(name):
    text = (ROOT / "docs" / f"{name}.md").read_text(encoding="utf-8")
    sections = {
        re.sub(r"[^\w -]", "", t).strip().lower().replace(" ", "-") for t in re.findall(r"^#+ (.+)$", text, re.M)
    }
    links = {
        (path.name, anchor)
        for path in (ROOT / "docs").rglob("*.md")
        for anchor in re.findall(rf"{name}\.md#([\w-]+)", path.read_text(encoding="utf-8"))
    }
    assert links
    assert {(page, anchor) for page, anchor in links if anchor not in sections} == set()


def test_records_belong_to_experiments():
    assert {page.stem_of(path) for path in page.RESULTS.glob("*.json")} <= set(names())


def test_a_resumed_run_of_sorting_keeps_its_schedule(tmp_path):
    pictures, labels = mnist(None, True)
    checkpoint = Checkpoint(tmp_path, "run")

    def training(steps: int) -> sort_digits.Training:
        protocol, numbers = sort_digits.Protocol(), sort_digits.Numbers(pictures, labels, 3, 4)
        loss = sort_digits.ours(OddEven(), Logistic(10.0))
        return sort_digits.Training(loss, protocol, numbers, numbers, steps, 2, 0, "cpu")

    first = training(2)
    first.run(checkpoint)
    second = training(4)
    second.run(checkpoint)
    assert second.done == 4
    assert all(float(group["lr"]) == pytest.approx(10**-3.5) for group in second.optimizer.param_groups)


@pytest.mark.parametrize("name", sort_digits.LOSSES)
def test_losses_of_sorting_know_the_order_alone(name):
    loss, values = sort_digits.LOSSES[name], torch.tensor([[12, 9000, 7, 450, 451]])
    ranks = values.argsort(-1).argsort(-1)
    scores = torch.tensor([[0.3, -0.2, 0.9, 0.1, 0.4]], requires_grad=True)
    found = loss(scores, values)
    torch.testing.assert_close(found, loss(scores, ranks))
    (grad,) = torch.autograd.grad(found, scores)
    assert loss(scores - 1e-3 * grad / grad.norm(), values) < found
    assert loss(ranks.float(), values) < loss(-ranks.float(), values)


@pytest.mark.parametrize("way", ["ours", "peer"])
def test_soft_paths_harden_to_the_cheapest(way):
    # All costs differ, so that there is one cheapest path
    costs, steepness = 1 + torch.rand(3, 12, 12, generator=torch.Generator().manual_seed(0)), torch.tensor(300.0)
    walk = shortest_paths.peer_paths(steepness) if way == "peer" else lambda c: shortest_paths.soft_paths(c, steepness)
    if walk is None:
        pytest.skip("algovision is not installed")
    found = walk(costs.requires_grad_())
    expected = torch.stack([shortest_paths.cheapest(c) for c in costs.detach()])
    torch.testing.assert_close(found, expected, rtol=0, atol=0.05)


def test_a_resumed_fit_of_fractals_is_the_same_fit(tmp_path):
    class Cut(Checkpoint):
        def save(self, state: dict, *, now: bool = False) -> None:
            super().save(state, now=True)
            if state["done"] == 2:
                raise KeyboardInterrupt

    wanted = fractals.targets(None, 1)
    whole = fractals.fit(wanted, 4, 2, 0, Checkpoint(None, "fit"))
    with pytest.raises(KeyboardInterrupt):
        fractals.fit(wanted, 4, 2, 0, Cut(tmp_path, "fit"))
    torch.testing.assert_close(fractals.fit(wanted, 4, 2, 0, Checkpoint(tmp_path, "fit")), whole)


def test_fits_of_fractals_learn_how_often_maps_are_chosen():
    # Small maps, whose points lie beside their offsets: 0 draws the left ones
    small = torch.tensor([0.1, 0.2, 0.15], requires_grad=True)
    offset, flat = torch.tensor([-3.0, 0.0, 3.0]), torch.zeros(3)
    maps = torch.stack([offset, small - 1, flat, flat, flat, small - 1], -1)
    cloud, weights = fractals.points(maps.unsqueeze(0), 100, torch.Generator().manual_seed(0))
    assert (weights == 1).all()
    share = (weights * (cloud[..., 0] < -1.5)).mean()
    (found,) = torch.autograd.grad(share, small, retain_graph=True)
    (expected,) = torch.autograd.grad(area_weights(maps)[0], small)
    torch.testing.assert_close(found, expected, rtol=0.05, atol=0)


def test_the_first_convolution_is_torchs():
    layer, x = sort_digits.FirstConvolution(1, 32, 5, padding=2), torch.rand(2, 1, 28, 112)
    found, expected = layer(x), torch.nn.Conv2d.forward(layer, x)
    torch.testing.assert_close(found, expected)
    weights = torch.randn_like(expected)
    for a, b in zip(
        *(torch.autograd.grad(y, list(layer.parameters()), weights) for y in (found, expected)), strict=True
    ):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)
