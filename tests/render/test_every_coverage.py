"""Every coverage can be chosen wherever pictures are made or fitted: renderer, fits, the RAN's inverse, files, commands."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from algonet.cli import render_commands
from algonet.fit.targets import blur
from algonet.ran import load_config
from algonet.ran.problems import problem_of
from algonet.ran.trainer import set_softness
from algonet.relax import SIGMOIDS, Anneal, Logistic, StudentT, hardened, softness_report
from algonet.render import (
    Camera,
    EdgeProduct,
    EuclideanCoverage,
    FilteredCoverage,
    MeshWeights,
    PoseSearch,
    SmoothRenderer,
    Targets,
    box,
    fit_camera,
    fit_mesh,
    icosphere,
    render_hard,
    rotation_error,
)
from algonet.render.coverage import COVERAGES, NAMED, Coverage, coverage_named
from fit.fitting_scenes import around
from helpers.noises import draw

#: Those with a name, and fields that names do not reach.
COVERED = {
    **{name: make(1.0) for name, make in NAMED.items()},
    "squared": EuclideanCoverage(Logistic(), squared=True),
    "ndc": FilteredCoverage(StudentT(), units="ndc"),
}
SMALL = "[data]\nsize = 16\nviews = 1\n[model]\nlevel = 0\nwidth = 8\nbase = 4\n"
every_coverage = pytest.mark.parametrize("coverage", COVERED.values(), ids=COVERED)


def test_every_class_has_a_name() -> None:
    assert {type(coverage) for coverage in COVERED.values()} == set(COVERAGES)
    with pytest.raises(ValueError, match="unknown name 'round'; there are filtered, gaussian, edges, euclidean"):
        coverage_named("round")


@every_coverage
def test_a_scale_in_pixels_is_as_soft_as_the_blur_of_targets(coverage: Coverage) -> None:
    """An edge through the middle of a large triangle fades as the crisp one does under the coverage's own blur."""
    mesh = icosphere(0).replace(
        vertices=torch.tensor([[-40.0, 0.0, 0.0], [40.0, 0.0, 0.0], [0.0, 60.0, 0.0]]), faces=torch.tensor([[0, 1, 2]])
    )
    camera = Camera.look_at((0.0, 0.0, 3.0))
    renderer = SmoothRenderer((32, 32), coverage)
    for pixels in (1.0, 3.0):
        renderer.set_scale(pixels)
        profile = renderer(mesh, camera).silhouette[:, 16].detach()
        away = 16 - (torch.arange(32) + 0.5)
        draws = draw(coverage.blur(pixels), 100_000)[:, 0]
        blurred = (away[:, None] + draws > 0).float().mean(1)
        # A sigmoid is not exactly normal; units of ndc and pixels agree
        assert (profile - blurred).abs().max() < 0.1, pixels
        assert 0.1 < float(profile[16]) < 0.9


@every_coverage
def test_fits_take_it(coverage: Coverage) -> None:
    """The first loss of a fit is the one that a renderer with this coverage has, and the fit then moves."""
    mesh, camera, wide = icosphere(0, 0.5), around(1), coverage.blur(1.5)
    image = render_hard(mesh.vertices * 1.5, mesh.faces, mesh.vertices, camera, size=(8, 8)).silhouette
    renderer = SmoothRenderer((8, 8), coverage, two_sided=False)
    renderer.set_scale(1.5)
    loss = float((renderer(mesh, camera).silhouette - blur(image, wide)).square().mean())
    options = {"steps": 2, "scales": (1.5, 1.5), "coverage": coverage}
    shape = fit_mesh(Targets(camera, silhouettes=image), template=mesh, weights=MeshWeights(silhouettes=1.0), **options)
    assert shape.history[0]["pictures"] == pytest.approx(loss, rel=1e-4)
    assert (shape.mesh.vertices - mesh.vertices).abs().max() > 1e-3
    brick, turned = box((1.2, 0.6, 0.3)), around(1, 0.3)
    image = render_hard(brick.vertices, brick.faces, brick.vertices, turned, size=(8, 8)).silhouette
    loss = float((renderer(brick, camera).silhouette - blur(image, wide)).square().mean())
    pose = fit_camera(brick, image[0], camera[0], move=False, **{**options, "steps": 8})
    assert pose.history[0]["loss"] == pytest.approx(loss, rel=1e-4)
    assert float(pose.losses) < loss
    assert rotation_error(pose.camera, camera[0]) > 0.1


@pytest.mark.parametrize("name", NAMED)
def test_a_configuration_gives_it_to_the_inverse(name: str, tmp_path: Path) -> None:
    file = tmp_path / "run.toml"
    file.write_text(f'{SMALL}coverage = "{name}"\n[train]\nsoftness = [2.0, 0.5]\n')
    problem = problem_of(load_config(file))
    _, inverse, _ = problem.parts()
    vertices = problem.template().vertices[None].requires_grad_()  # pyright: ignore[reportAttributeAccessIssue]
    soft = inverse(vertices)
    (slope,) = torch.autograd.grad(soft.sum(), vertices)
    assert slope.abs().max() > 0
    main = "scale" if "scale" in inverse.state_dict() else "steepness"
    assert set(softness_report(inverse, vertices.detach()).softness) == {
        f"RenderInverse.{main}", "RenderInverse.depth_steepness"
    }  # fmt: skip
    set_softness(inverse, 0.5)
    assert float(getattr(inverse, main)) == (0.5 if main == "scale" else 2.0)
    sharp = inverse(vertices).detach()
    Anneal(50.0, 1.0, 1, field="depth_steepness").attach(inverse).step()
    assert float(inverse.state_dict()["depth_steepness"]) == 1.0
    assert (inverse(vertices) - sharp).abs().max() > 1e-4
    with hardened(inverse):
        edges = inverse(vertices)
    assert ((edges > 0.05) & (edges < 0.3)).sum() < ((soft > 0.05) & (soft < 0.3)).sum()


def test_a_configuration_with_another_name_is_answered(tmp_path: Path) -> None:
    file = tmp_path / "run.toml"
    file.write_text('[model]\ncoverage = "round"\n')
    with pytest.raises(ValueError, match=r"run.toml: config: `model.coverage` must be one of filtered, gaussian"):
        load_config(file)


def _small(folder: Path) -> Path:
    file = folder / "small.toml"
    file.write_text(SMALL)
    return file


@pytest.mark.parametrize("name", NAMED)
def test_commands_take_it(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # The slow ones search 80 + 100 steps otherwise
    monkeypatch.setattr("algonet.fit.PoseSearch", partial(PoseSearch, steps=1, refine_steps=1))
    program, runner = render_commands.app, CliRunner()
    picture, run = tmp_path / "box.png", tmp_path / "run"
    small = ["--size", "16", "--coverage", name]
    fit = ["fit-mesh", str(tmp_path), "--out", str(run), "--steps", "2", "--level", "0", "--texture", "0"]
    pose = ["fit-camera", "box", str(picture), "--out", str(tmp_path / "pose"), "--rotations", "2", "--silhouette"]
    calls = [["render", "box", "--out", str(picture), *small], [*fit, *small], [*pose, *small]]
    for call in calls:
        result = runner.invoke(program, call)
        assert result.exit_code == 0, (call, result.output, result.exception)
        if call[0] == "fit-mesh":
            assert f'"coverage": "{name}"' in (run / "report.json").read_text()


def test_commands_say_which_names_there_are(tmp_path: Path) -> None:
    for call in (["render", "box"], ["fit-mesh", "views"], ["fit-camera", "box", "x.png"]):
        result = CliRunner().invoke(
            render_commands.app, [*call, "--out", str(tmp_path / "x.png"), "--coverage", "round"]
        )
        assert "there are filtered, gaussian, edges, euclidean" in str(result.exception)
        assert not any(tmp_path.iterdir())


@pytest.mark.parametrize("family", SIGMOIDS)
def test_every_sigmoid_has_a_blur(family) -> None:
    for coverage in (EdgeProduct(family()), EuclideanCoverage(family(), squared=True)):
        assert 0 < float(coverage.blur(2.0).scale) < 20


def test_what_has_no_softness_cannot_be_annealed() -> None:
    class Fixed(Logistic):
        softness_field = None

    with pytest.raises(ValueError, match=r"Fixed.* has no softness to set"):
        SmoothRenderer((8, 8), EdgeProduct(Fixed())).set_scale(2.0)
