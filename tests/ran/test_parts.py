from __future__ import annotations

import json
import math

import numpy as np
import pytest
import torch
from PIL import Image
from typer.testing import CliRunner

from algonet.cli.ran_commands import app
from algonet.ran import load_config, load_model
from algonet.ran.build import build_data, build_model
from algonet.ran.config import RunConfig, from_dict
from algonet.ran.data import SPLITS, STYLES, generator_of, read_views
from algonet.ran.data.shapes import KINDS, Shapes, random_shape
from algonet.ran.model import TOGETHER
from algonet.ran.networks import Encoder, KeepColours, LocalTranslator, PairDiscriminator, UNet
from algonet.ran.problems import problem_of
from algonet.ran.problems.fractal import Fractals
from algonet.ran.problems.mesh import MeshRegulariser, RenderInverse, chamfer, iou, occupancy
from algonet.ran.report import MARGIN
from algonet.ran.schedules import set_softness
from algonet.relax import Anneal
from algonet.render import Mesh, box, icosphere
from algonet.render.coverage import coverage_named

SHARP = coverage_named("filtered", 0.5)
TINY = {
    "data": {"size": 16, "views": 2, "train": 6, "test": 2},
    "model": {"level": 1, "width": 16, "base": 4, "translator_base": 4},
    "loss": {"separately": False},
    "train": {"steps": 2, "batch": 2, "wait": 0, "accelerator": "cpu", "checkpoint_every": 2, "pictures_every": 2},
}


@pytest.mark.parametrize("kind", KINDS)
def test_shapes_are_closed_and_fit_the_ball(kind):
    for index in range(3):
        mesh = random_shape(generator_of(0, index), (kind,))
        assert float(mesh.vertices.norm(dim=-1).max()) == pytest.approx(0.9, abs=1e-4)
        ends = torch.cat([mesh.faces[:, [0, 1]], mesh.faces[:, [1, 2]], mesh.faces[:, [2, 0]]])
        # Closed and oriented: every edge is run through once in each direction
        there = {tuple(e) for e in ends.tolist()}
        assert there == {(b, a) for a, b in there}
        corners = mesh.vertices[mesh.faces]
        volume = float((corners[:, 0] * torch.linalg.cross(corners[:, 1], corners[:, 2])).sum() / 6)
        assert volume > 0.01


def test_items_are_functions_of_seed_and_index():
    one, other = Shapes(8, 16, 2, seed=1), Shapes(8, 16, 2, seed=1)
    backwards = [other[i]["a"] for i in reversed(range(4))][::-1]
    for index in range(4):
        torch.testing.assert_close(one[index]["a"], backwards[index], rtol=0, atol=0)
        torch.testing.assert_close(one.mesh(index).vertices, other.mesh(index).vertices, rtol=0, atol=0)
    assert not torch.equal(one[0]["a"], one[1]["a"])
    others = [Shapes(8, 16, 2, seed=seed, split=split) for seed in (0, 1, 2) for split in SPLITS]
    assert sum(torch.equal(one[0]["a"], other[0]["a"]) for other in others) == 1
    with pytest.raises(ValueError, match="unknown split 'dev'; choose from train, test, validation"):
        Shapes(8, 16, 2, 0, split="dev")
    assert one[0]["a"].shape == (3, 16, 32)
    assert 0 <= float(one[0]["a"].min()) <= float(one[0]["a"].max()) <= 1
    with pytest.raises(IndexError):
        one[8]
    with pytest.raises(ValueError, match="unknown kind 'cone'; choose from box"):
        Shapes(8, 16, 2, 0, kinds=("cone",))


def test_batches_are_stacked_items_and_hold_only_what_was_asked_for():
    data = Shapes(8, 16, 2, seed=1)
    batch = data.batch([5, 2, 5], ("a",))
    assert list(batch) == ["a"]
    torch.testing.assert_close(batch["a"], torch.stack([data[i]["a"] for i in (5, 2, 5)]), rtol=0, atol=0)
    kept = data[2]["a"]
    torch.testing.assert_close(data.to("cpu")[2]["a"], kept, rtol=0, atol=0)


def _pixels(kind, style, split):
    """Pixels (N, 3) of 48 items and where they show the object."""
    if kind == "mesh":
        data = Shapes(48, 24, 1, seed=0, split=split, style=style, points=1)
        inside = torch.stack([data.silhouette(i) for i in range(48)])
    else:
        data = Fractals(48, 32, 3, seed=0, split=split, style=style)
        # What the palettes show as warm: the same systems, whatever their style
        plain = Fractals(48, 32, 3, seed=0, split=split, noise=0.0).batch(list(range(48)), ("a",))["a"]
        inside = (plain[:, 0] > plain[:, 2]).float()
    pictures = data.batch(list(range(48)), ("a",))["a"]
    return pictures.movedim(1, -1).flatten(0, -2).double(), inside.flatten().double()


@pytest.mark.parametrize("kind", ["mesh", "ifs"])
@pytest.mark.parametrize("style", STYLES)
def test_the_best_rule_on_colours_solves_the_palettes_alone(kind, style):
    """Logistic regression on RGB and its products, fitted with labels, cut where its IoU is best."""

    def features(x):
        return torch.cat([x, x.square(), x * x.roll(1, -1), torch.ones_like(x[:, :1])], -1)

    (x, y), (unseen, true) = _pixels(kind, style, "train"), _pixels(kind, style, "test")
    x, unseen = features(x), features(unseen)
    w = x.new_zeros(x.shape[1])
    for _ in range(8):  # Newton's method
        p = torch.sigmoid(x @ w)
        curvature = (x * (p * (1 - p))[:, None]).T @ x + 0.1 * torch.eye(len(w))
        w = w + torch.linalg.solve(curvature, x.T @ (y - p) - 0.1 * w)
    cuts = torch.logspace(-3, 0, 40).log() - 1.0

    def scores(x, y):
        return [iou(x @ w > cut, y > 0) for cut in (*cuts.tolist(), 0.0, 1.0)]

    best = int(np.argmax(scores(x, y)))
    found = scores(unseen, true)[best]
    assert found > 0.99 if STYLES[style].cue else found < 0.4


def test_occupancy_counts_volume_and_unions():
    cube = box((1.0, 1.0, 1.0))
    assert float(occupancy(cube).double().mean() * 8) == pytest.approx(1.0)
    ball = occupancy(icosphere(4))
    assert float(ball.double().mean() * 8) == pytest.approx(4 / 3 * math.pi, rel=0.02)
    shifted = Mesh(cube.vertices + torch.tensor([0.25, 0.0, 0.0]), cube.faces)
    both = Mesh(torch.cat([cube.vertices, shifted.vertices]), torch.cat([cube.faces, cube.faces + len(cube.vertices)]))
    assert float(occupancy(both).double().mean() * 8) == pytest.approx(1.25)
    assert torch.equal(occupancy(both), occupancy(cube) | occupancy(shifted))
    assert iou(occupancy(cube), occupancy(shifted)) == pytest.approx(0.6)
    assert iou(occupancy(cube), occupancy(cube)) == 1
    inside_out = Mesh(cube.vertices, cube.faces.flip(-1))
    assert not occupancy(inside_out).any()


def test_chamfer_of_shifted_balls():
    ball = icosphere(3)
    assert chamfer(ball, ball) < 0.05
    assert chamfer(ball, icosphere(3, 1.5)) == pytest.approx(0.5, abs=0.05)


def test_the_inverse_sees_every_side_and_has_gradients():
    ball = icosphere(1, 0.6)
    inverse = RenderInverse(ball.faces, 16, views=2)
    stretched = ball.vertices * torch.tensor([1.4, 1.0, 0.6])
    vertices = torch.stack([ball.vertices, stretched]).requires_grad_()
    pictures = inverse(vertices)
    assert pictures.shape == (2, 1, 16, 32)
    front, side = pictures[1, 0].chunk(2, -1)
    assert float(front.detach().sum()) > 1.3 * float(side.detach().sum())
    (slope,) = torch.autograd.grad(pictures.sum(), vertices)
    assert torch.isfinite(slope).all()
    assert (slope.abs().sum((1, 2)) > 0).all()
    alone = inverse(vertices[1:])
    torch.testing.assert_close(alone[0], pictures[1])


def test_shading_is_the_contrast_of_the_renderings():
    ball = icosphere(2, 0.6)
    plain, shaded = (
        RenderInverse(ball.faces, 24, 1, SHARP, shading)(ball.vertices[None])[0, 0] for shading in (0.0, 0.5)
    )
    inside = slice(9, 15)
    assert float(plain[inside, inside].min()) > 0.99
    assert float(shaded[inside, inside].std()) > 0.02
    assert 0.5 < float(shaded[inside, inside].min()) < float(shaded[inside, inside].max()) <= 1.0


def test_regulariser_likes_the_template():
    ball = icosphere(1)
    regular = MeshRegulariser(ball, laplacian=1.0, flatten=0.0)
    assert float(regular(ball.vertices[None])) == pytest.approx(0, abs=1e-10)
    moved = ball.vertices + torch.tensor([0.3, 0.0, 0.0])
    assert float(regular(moved[None])) == pytest.approx(0, abs=1e-10)
    rough = ball.vertices + 0.1 * torch.randn(ball.vertices.shape)
    assert float(regular(rough[None])) > 1e-3
    flat = MeshRegulariser(ball, laplacian=0.0, flatten=1.0)
    assert float(flat(rough[None])) > float(flat(ball.vertices[None]))


@pytest.mark.parametrize("reach", [0, 1, 2])
def test_local_translators_are_local_and_do_not_know_where_they_are(reach):
    net = LocalTranslator(1, 3, base=8, reach=reach)
    x = torch.rand(1, 1, 16, 16)
    changed = x.clone()
    changed[..., 8, 8] += 1
    difference = (net(changed) - net(x)).abs().amax((0, 1)) > 0
    rows, columns = difference.nonzero(as_tuple=True)
    assert (rows - 8).abs().max() == (columns - 8).abs().max() == reach
    constant = net(torch.full((1, 1, 9, 9), 0.3))
    torch.testing.assert_close(constant, constant[..., :1, :1].expand_as(constant))


def test_networks_treat_each_picture_alone():
    a, b = torch.rand(3, 3, 16, 32), torch.rand(3, 1, 16, 32)
    for net in (UNet(3, 1, 4), Encoder(3, (16, 32), 2, 8, 4, 2), LocalTranslator(3, 1, 4)):
        torch.testing.assert_close(net(a)[1:2], net(a[1:2]))
    judge = PairDiscriminator(3, 1, 4).eval()
    assert judge(a, b).shape == (3,)
    torch.testing.assert_close(judge(a, b)[1:2], judge(a[1:2], b[1:2]))
    with pytest.raises(ValueError, match="multiples of 8"):
        UNet(3, 1, 4)(a[..., :12])
    with pytest.raises(ValueError, match="cannot be halved 4 times"):
        Encoder(3, (24, 24), levels=4)


def test_colours_pass_through_where_the_object_is():
    a = torch.rand(2, 3, 8, 8)
    net = KeepColours(LocalTranslator(3, 1, 4))
    b = net(a)
    assert b.shape == (2, 4, 8, 8)
    torch.testing.assert_close(b[:, 1:], b[:, :1] * a)


@pytest.mark.parametrize("kind", ["mesh", "ifs"])
@pytest.mark.parametrize("method", ["ran", "direct", "supervised", "weak"])
@pytest.mark.parametrize("colours", [False, True])
def test_every_configuration_has_losses(kind, method, colours):
    if kind == "ifs" and colours:
        pytest.skip("function systems have no colours")
    config = from_dict({"kind": kind, "method": method, **TINY, "model": {**TINY["model"], "colours": colours}})
    model, data = build_model(config), build_data(config, "train").label(0.3)
    batch = data.batch([0, 1], model.sees)
    assert set(batch) == set(model.sees)
    for section in model.sections:
        index = TOGETHER if method in ("ran", "weak") else 1
        with model.training_only(section):
            model(batch, section, index).backward()
        moved = [p for name in model.sections[section] for p in getattr(model, name).parameters()]
        assert all(p.grad is not None and torch.isfinite(p.grad).all() for p in moved)


def test_a_model_begins_at_its_template():
    config = from_dict({"method": "direct", **TINY})
    model, data = build_model(config), build_data(config, "test")
    problem = problem_of(config)
    assert problem.evaluate(model, data)["iou"] == pytest.approx(problem.evaluate(None, data)["iou"], abs=0.05)
    again = build_model(config)
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), again.parameters(), strict=True))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[train]\nbatchsize = 3", r"unknown key `train\.batchsize`; there are accelerator, accumulate, batch"),
        ("kind = 'sound'", r"`kind` must be one of mesh, ifs.*, got 'sound'"),
        ("[train]\nsteps = 'many'", r"`train\.steps` must be an integer, got 'many'"),
        ("[train]\nsteps = 0", r"`train\.steps` must be between 1 and .*, got 0"),
        ("[train]\nbatch = 3\naccumulate = 2", r"`train\.batch` = 3 must be a multiple"),
        ("[loss]\nalpha = [1.0]", r"`loss\.alpha` must be a list of 5"),
        ("[train]\nsave_errors = 'ask'", r"`train\.save_errors` must be one of stop, continue, got 'ask'"),
        ("[train]\nsoftness = [1.0]", r"`train\.softness` must be a list of 2"),
        ("data = 3", r"`data` must be a table"),
        ("[data", "not valid TOML"),
    ],
)
def test_configuration_errors_name_the_key(tmp_path, text, message):
    path = tmp_path / "run.toml"
    path.write_text(text)
    with pytest.raises(ValueError, match=rf"run\.toml: .*{message}"):
        load_config(path)


def test_configurations_survive_json():
    config = from_dict({**TINY, "seed": 3})
    assert from_dict(json.loads(json.dumps(config.to_dict()))) == config
    assert RunConfig() == from_dict({})


def toml(table: dict) -> str:
    def value(v):
        return json.dumps(v)

    return "\n".join(
        f"[{name}]\n" + "\n".join(f"{k} = {value(v)}" for k, v in rows.items()) for name, rows in table.items()
    )


@pytest.mark.parametrize("kind", ["mesh", "ifs"])
def test_train_and_reconstruct_from_the_command_line(tmp_path, monkeypatch, kind):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run.toml").write_text(f'kind = "{kind}"\n' + toml(TINY))
    runner = CliRunner()
    done = runner.invoke(app, ["train", "run.toml", "--out", "run"], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    assert ("iou" if kind == "mesh" else "ssim") in done.output
    assert list((tmp_path / "run/tensorboard").iterdir())
    with Image.open(tmp_path / "run/pictures.png") as grid:
        # Five pictures and their margins in a row, one row per item of the batch, and names around them
        assert grid.size == (MARGIN[0] + 5 * (18 if kind == "ifs" else 34), MARGIN[1] + 2 * 18)
        names = np.asarray(grid)[: MARGIN[1], MARGIN[0] :].min((0, 2)) < 128
        assert all(column.any() for column in np.split(names, 5))
    model, config = load_model(tmp_path / "run")
    assert not model.training
    picture = (build_data(config, "test")[0]["a"].permute(1, 2, 0).numpy() * 255).astype(np.uint8)
    Image.fromarray(picture).save(tmp_path / "photo.png")
    done = runner.invoke(app, ["reconstruct", "run", "photo.png", "--out", "found"], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    if kind == "mesh":
        assert Mesh.load(tmp_path / "found/photo.obj").faces.shape == (80, 3)
    else:
        assert len(json.loads((tmp_path / "found/photo.json").read_text())["parameters"]) == 3
    with Image.open(tmp_path / "found/photo.png") as seen:
        assert seen.size[1] > 16


def test_pictures_that_cannot_be_read(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(FileNotFoundError, match="no such file"):
        read_views(tmp_path / "none.png", 16, 2)
    (tmp_path / "text.png").write_text("hello")
    with pytest.raises(ValueError, match="not readable as a picture"):
        read_views(tmp_path / "text.png", 16, 2)
    Image.new("RGB", (20, 20)).save(tmp_path / "square.png")
    with pytest.raises(ValueError, match="2 square view"):
        read_views(tmp_path / "square.png", 16, 2)


def test_labelled_items_accompany_the_others():
    data = Shapes(10, 16, 1, seed=0).label(0.2)
    assert data.labels == 2
    batch = data.batch([7, 4], ("a", "labelled.a", "labelled.points"))
    torch.testing.assert_close(batch["a"][0], data[7]["a"])
    torch.testing.assert_close(batch["labelled.a"][0], data[1]["a"])
    torch.testing.assert_close(batch["labelled.points"][1], data[0]["points"])
    with pytest.raises(ValueError, match="share of labelled items must be in"):
        data.label(0.0)


def test_softness_reaches_every_relaxation_of_an_inverse():
    for kind in ("mesh", "ifs"):
        inverse = build_model(from_dict({"kind": kind, **TINY})).inverse
        Anneal(2.0, 0.5, 2, field="scale").attach(inverse).step()
        assert float(inverse.scale) == pytest.approx(1.0)
        assert "scale" in inverse.state_dict()
        set_softness(inverse, 0.25)
        assert float(inverse.relax.scale) == 0.25
