"""The fit: it finds what it should, reads any picture, ends by itself, and refuses what cannot be fitted."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from PIL import Image, ImageDraw

from algonet.fit.ifs import read_picture
from algonet.fit.ifs_search import Shape, Systems, Whitening, blurred, find_maps, refine
from algonet.ifs import IFS, FitPlan, Level, Search, fit_ifs, ssim
from algonet.ifs.presets import residual_form
from algonet.relax import GaussianNoise
from helpers.tolerances import assert_close

QUICK = FitPlan(
    restarts=3,
    search=Search(candidates=4, points=48, steps=6, side=24),
    levels=(Level(side=32, sigma=(2.0, 1.0), steps=8, rate=0.01, points=256, depth=10, keep=2),),
)


@pytest.fixture(scope="module")
def triangle():
    with torch.no_grad():
        return IFS.preset("sierpinski", points=20_000)((64, 64))


def test_it_finds_the_triangle(triangle):
    """Small enough to run in seconds; the default plan does the same at 128 pixels."""
    level = Level(side=64, sigma=(3.0, 1.0), steps=40, rate=0.01, points=1024, depth=14, keep=1)
    plan = FitPlan(restarts=10, search=Search(candidates=8, points=64, steps=16, side=48), levels=(level,))
    result = fit_ifs(triangle, functions=3, plan=plan, seed=0)
    assert result.similarity > 0.9
    assert float(ssim(result.picture, triangle)) == pytest.approx(result.similarity)
    assert result.history[-1]["loss"] < result.history[0]["loss"]
    assert result.frames[-1].shape == (64, 64)
    assert result.frames[-1].dtype == torch.uint8


def test_no_level_is_finer_than_the_picture_or_makes_it_worse():
    """Small pictures: the last levels of a plan for 128 pixels must not undo the first.

    One system is kept: of several, those of the last level are compared by similarity, earlier ones by loss.
    """
    with torch.no_grad():
        target = IFS.preset("sierpinski", points=20_000)((32, 32))
    level = Level(side=32, sigma=(3.0, 1.0), steps=40, rate=0.01, points=1024, depth=14, keep=1)
    plan = FitPlan(restarts=10, search=Search(candidates=8, points=64, steps=16, side=48), levels=(level,))
    early = fit_ifs(target, 3, plan=plan)
    worse = replace(level, side=128, sigma=(6.0, 6.0), steps=4, rate=0.2, points=64)
    late = fit_ifs(target, 3, plan=replace(plan, levels=(level, worse)))
    assert late.similarity >= early.similarity > 0.9
    assert all(frame.shape == (32, 32) for frame in late.frames)
    assert len(repr(late)) < 80


@pytest.mark.parametrize("size", [(8, 8), (1, 5), (6, 40)])
def test_small_and_thin_pictures_have_a_similarity(size):
    image = torch.zeros(size)
    image[: max(1, size[0] // 2), : size[1] // 2] = 1.0
    short = Level(16, (2.0, 1.0), steps=1, rate=1e-9, points=16, depth=4, keep=1)
    result = fit_ifs(image, 1, plan=FitPlan(1, Search(candidates=1, points=8, steps=1), (short,)))
    assert -1 <= result.similarity <= 1
    assert ("a poor likeness" in repr(result)) == (result.similarity < 0.8)


def test_the_same_seed_gives_the_same_fit(triangle):
    first, second = (fit_ifs(triangle, 3, plan=QUICK, seed=5) for _ in range(2))
    assert torch.equal(first.ifs.maps, second.ifs.maps)
    other = fit_ifs(triangle, 3, plan=QUICK, seed=6)
    assert not torch.equal(first.ifs.maps, other.ifs.maps)


def test_tone_is_learned():
    """The right maps, drawn too dark and too crisp: exposure and noise are found, and only where the level says so."""
    half = torch.tensor([[0.5, 0.0, 0.0, 0.5, x, y] for x, y in ((0.0, 0.0), (0.5, 0.0), (0.25, 0.5))])
    maps, weights = residual_form(half), torch.full((3,), 1 / 3)
    options = {"weights": weights, "extent": (0.0, 1.0, 0.0, 1.0), "points": 2**16}
    target = IFS(maps, exposure=1.2, noise=GaussianNoise(1.8), **options)((48, 48)).detach()
    shape = Shape(-torch.log1p(-target))
    start = Systems(maps[None], weights.log()[None], torch.tensor([0.8]).log(), torch.zeros(1), torch.zeros(1))
    cloud = shape.sample(2000, torch.Generator().manual_seed(0))
    learned = []
    for tone in (False, True):
        level = Level(48, (1.0, 1.0), steps=60, rate=1e-9, points=8192, depth=16, keep=1, tone=tone)
        with torch.no_grad():
            found = refine(start, shape, level, cloud, 0.97, lambda *_: None, torch.Generator().manual_seed(0))
        learned.append((float(found.exposures.exp()), float(found.scales.exp())))
    assert learned[0] == pytest.approx((0.8, 1.0))
    # A few points too many in one pixel and too few in the next ask for a little more exposure
    assert learned[1] == pytest.approx((1.2, 1.8), rel=0.15)


def test_silhouettes_get_more_functions(triangle):
    square = torch.zeros(24, 24)
    square[4:20, 6:18] = 1.0
    assert fit_ifs(square, plan=QUICK).ifs.functions == 12
    assert fit_ifs(square * (251 / 255), plan=QUICK).ifs.functions == 12
    assert fit_ifs(triangle, plan=QUICK).ifs.functions == 4
    assert fit_ifs(square, 2, plan=QUICK).ifs.functions == 2


def test_any_shape_and_colour():
    image = torch.zeros(3, 30, 52)
    image[0, 5:25, 5:40] = 0.9
    image[1, 10:20, 5:40] = 0.4
    result = fit_ifs(image, functions=2, plan=QUICK)
    assert result.picture.shape == result.target.shape
    assert result.target.shape[0] < result.target.shape[1]
    assert result.ifs.colours is not None
    assert result.ifs((30, 52)).shape == (3, 30, 52)
    assert float(result.ifs.colours[:, 0].detach().mean()) > float(result.ifs.colours[:, 2].detach().mean())


def test_files_of_every_kind_are_read(tmp_path):
    disc = torch.zeros(20, 24)
    disc[6:14, 8:18] = 1.0
    grey = Image.fromarray((disc * 255).byte().numpy())
    kinds = {"L": grey, "1": grey.convert("1"), "P": grey.convert("P"), "RGB": grey.convert("RGB")}
    for mode, picture in kinds.items():
        picture.save(tmp_path / f"{mode}.png")
        found, colours = read_picture(tmp_path / f"{mode}.png")
        assert_close(found, disc)
        assert (colours is None) == (mode in ("L", "1"))
    cut = Image.merge("RGBA", [*[Image.new("L", grey.size, 30)] * 3, grey])
    cut.save(tmp_path / "alpha.png")
    assert_close(read_picture(tmp_path / "alpha.png")[0], disc)
    assert_close(read_picture(1 - disc)[0], disc)
    assert_close(read_picture(1 - disc, "bright")[0], 1 - disc)
    assert_close(read_picture(disc[..., None].expand(20, 24, 3))[0], disc)
    assert_close(read_picture((disc * 255).byte())[0], disc)


@pytest.mark.parametrize(
    ("image", "message"),
    [
        (torch.zeros(0, 5), "is empty"),
        (torch.full((8, 8), 0.3), "has one brightness all over"),
        (torch.full((8, 8), torch.nan), "holds NaN"),
        (torch.rand(5, 6, 7), "wanted"),
        (torch.rand(5), "wanted"),
    ],
)
def test_pictures_that_cannot_be_fitted(image, message):
    with pytest.raises(ValueError, match=message):
        fit_ifs(image)


def test_broken_files_give_one_line_that_names_them(tmp_path):
    broken = tmp_path / "broken.png"
    broken.write_bytes(b"not a picture")
    with pytest.raises(ValueError, match=r"broken\.png: not readable as a picture") as caught:
        fit_ifs(broken)
    assert "\n" not in str(caught.value)
    whole = tmp_path / "whole.png"
    Image.fromarray((torch.rand(40, 40) * 255).byte().numpy()).save(whole)
    (tmp_path / "cut.png").write_bytes(whole.read_bytes()[:200])
    with pytest.raises(ValueError, match=r"cut\.png: not readable as a picture"):
        fit_ifs(tmp_path / "cut.png")
    with pytest.raises(FileNotFoundError, match=r"nowhere\.png: there is no such file"):
        fit_ifs(tmp_path / "nowhere.png")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"functions": 0}, "`functions` must be an integer from 1 on, got 0"),
        ({"foreground": "red"}, "unknown foreground 'red'; choose one of auto, bright, dark"),
    ],
)
def test_refuses(triangle, options, message):
    with pytest.raises(ValueError, match=message):
        fit_ifs(triangle, **options)


@pytest.mark.parametrize(
    ("image", "error", "message"),
    [
        (255 * torch.rand(8, 8) + 1, ValueError, r"wanted values in \[0, 1\], got .*; divide bytes by 255"),
        (torch.rand(8, 8).numpy(), TypeError, "must be a tensor or the name of a file, got ndarray"),
    ],
)
def test_refuses_what_is_no_picture(image, error, message):
    with pytest.raises(error, match=message):
        fit_ifs(image)


def test_whitening_is_undone():
    cloud, parameters = torch.rand(50, 2, dtype=torch.float64), torch.randn(2, 3, 6, dtype=torch.float64)
    whitening = Whitening(cloud)
    assert_close(whitening.decode(whitening.encode(parameters)), parameters)


def test_the_search_finds_maps_into_the_shape(triangle):
    shape = Shape(-torch.log1p(-triangle.clamp_max(0.99)))
    maps = find_maps(shape, 3, 4, Search(candidates=8, points=64, steps=25, side=48), torch.Generator().manual_seed(0))
    assert maps.shape == (4, 3, 6)
    inside = []
    for system in maps:
        points = shape.sample(500, torch.Generator().manual_seed(1))
        linear = system.unflatten(-1, (2, 3))[..., 1:] + torch.eye(2)
        images = points @ linear[0].T + system[0, [0, 3]]
        row, column = (63 - (images[:, 1] * 64).long()).clamp(0, 63), (images[:, 0] * 64).long().clamp(0, 63)
        inside.append(float((triangle[row, column] > 0.3).float().mean()))
    assert max(inside) > 0.9


def test_the_search_does_not_shrink_from_thin_lines():
    """A binary tree of lines a pixel wide: its halves are maps of 0.68 that every blur leaves faint."""
    lines = Image.new("L", (256, 256))
    pen = ImageDraw.Draw(lines)

    def grow(x: float, y: float, angle: float, length: float) -> None:
        if length > 6:
            end = x + length * math.sin(angle), y - length * math.cos(angle)
            pen.line((x, y, *end), fill=255, width=4)
            for turn in (-math.pi / 6, math.pi / 6):
                grow(*end, angle + turn, 0.68 * length)

    grow(128, 248, 0.0, 82)
    shape = Shape(torch.tensor(list(lines.resize((64, 64), Image.Resampling.BOX).tobytes())).reshape(64, 64) / 255)
    maps = find_maps(shape, 1, 8, Search(candidates=8, points=64, steps=25), torch.Generator().manual_seed(0))
    linear = maps.unflatten(-1, (2, 3))[..., 1:] + torch.eye(2)
    assert float(torch.linalg.det(linear).abs().max()) > 0.2


def test_blurring_keeps_the_mass_inside():
    field = torch.zeros(2, 21, 25, dtype=torch.float64)
    field[:, 10, 12] = 1.0
    out = blurred(field, 1.5)
    assert float(out[0].sum()) == pytest.approx(1.0, abs=1e-6)
    assert float(out[0, 10, 12]) == pytest.approx(1 / (2 * torch.pi * 1.5**2), rel=1e-3)


def test_ssim_of_equal_and_unlike_pictures():
    a, b = torch.rand(2, 20, 24, dtype=torch.float64), torch.rand(2, 20, 24, dtype=torch.float64)
    assert_close(ssim(a, a), torch.ones(2, dtype=torch.float64))
    assert float(ssim(a, b).max()) < 0.5
    assert_close(ssim(a, b), ssim(b, a))
    assert torch.autograd.gradcheck(ssim, (a[0, :11, :12].clone().requires_grad_(), b[0, :11, :12]))
    with pytest.raises(ValueError, match="wanted two pictures of one size"):
        ssim(a, b[..., :5])
