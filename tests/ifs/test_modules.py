"""`IFS`: state, presets, colours, files, and what it refuses."""

from __future__ import annotations

import json

import pytest
import torch

from algonet.ifs import IFS, PRESETS, Poisson, smooth_raster
from algonet.ifs.modules import fitted_extent
from algonet.ifs.presets import preset
from algonet.relax import Anneal, GaussianNoise, Probabilistic, StudentT, hardened, softness_report
from helpers.tolerances import assert_close


@pytest.mark.parametrize("name", PRESETS)
def test_presets_fill_their_frame_and_the_crisp_picture_is_the_limit(name):
    ifs = IFS.preset(name, points=4096)
    crisp = ifs.crisp((48, 48), points=100_000)
    assert 0.02 < float(crisp.mean()) < 0.95
    border = torch.cat([crisp[0], crisp[-1], crisp[:, 0], crisp[:, -1]])
    assert float(border.sum()) == 0, "the extent cuts the attractor"
    with torch.no_grad():
        soft = ifs((48, 48), sigma=0.02, aggregate=Probabilistic())
    # every pixel that a smooth point marks holds a point of the long crisp game too, but for the rarest
    assert float(((soft > 0.5) & (crisp == 0)).float().mean()) < 0.02


def test_the_picture_is_a_function_of_parameters_and_seed():
    first, second = IFS.preset("fern", points=512), IFS.preset("fern", points=512)
    assert torch.equal(first((20, 20)), second((20, 20)))
    second.redraw(seed=1)
    assert not torch.equal(first((20, 20)), second((20, 20)))
    second.redraw(seed=0)
    assert torch.equal(first((20, 20)), second((20, 20)))
    second.redraw()
    assert second.seed != 0


@torch.no_grad()
def test_whole_chains_are_drawn(tmp_path):
    """By hand: every point that a chain passes once its start is forgotten; the picture is about that of the chains' ends."""
    colours = torch.rand(3, 3)
    whole = IFS.preset("sierpinski", chains=8, points=4000, colours=colours)
    steps = whole.choices.shape[1]
    state, seen = whole.start.double(), []
    offset = whole.parameters_.detach().double().unflatten(-1, (2, 3))
    for step in range(steps):
        rows = offset[whole.choices[:, step].long()]
        state = state + rows[..., 0] + (rows[..., 1:] @ state[..., None])[..., 0]
        seen.append(state)
    expected = torch.stack(seen, 1)[:, whole.burn_in :].flatten(0, 1)
    assert expected.shape == (4000, 2)
    torch.testing.assert_close(whole.points().detach().double(), expected, atol=1e-5, rtol=0)
    ends = IFS.preset("sierpinski", points=4000, colours=colours)
    assert float((whole((24, 24)) - ends((24, 24))).detach().abs().mean()) < 0.03
    whole.save(tmp_path / "whole.json")
    assert torch.equal(IFS.load(tmp_path / "whole.json")((24, 24)), whole((24, 24)))
    with pytest.raises(ValueError, match="chains"):
        IFS.preset("sierpinski", chains=0)


def test_exposure_not_the_number_of_points_sets_the_brightness():
    few, many = IFS.preset("sierpinski", points=4096), IFS.preset("sierpinski", points=16384)
    assert few((24, 24)).detach().mean().item() == pytest.approx(many((24, 24)).detach().mean().item(), rel=0.02)
    brighter = IFS.preset("sierpinski", points=4096, exposure=3.0)
    assert brighter((24, 24)).detach().mean() > 1.1 * few((24, 24)).detach().mean()


def test_state_moves_and_loads():
    ifs = IFS.preset("dragon", points=256, seed=3)
    other = IFS.preset("dragon", points=256, seed=4)
    other.load_state_dict(ifs.state_dict())
    assert torch.equal(ifs((16, 16)), other((16, 16)))
    assert ifs.double()((16, 16)).dtype == torch.float64


def test_gradients_reach_parameters_and_colours():
    ifs = IFS.preset("fern", points=512, colours=torch.rand(4, 3))
    ifs((16, 16), sigma=1.5).square().sum().backward()
    assert float(ifs.parameters_.grad.abs().sum()) > 0
    assert float(ifs.colours.grad.abs().sum()) > 0


def test_a_bound_makes_any_system_contract():
    wild = torch.randn(3, 6) * 5
    ifs = IFS(wild, bound=0.9, points=128)
    assert ifs.points().isfinite().all()
    assert float(ifs.points().detach().abs().max()) < 1e3


def test_compiles_whole():
    ifs = IFS.preset("sierpinski", points=128)
    torch._dynamo.reset()
    compiled = torch.compile(ifs, fullgraph=True, backend="aot_eager")
    assert_close(compiled((12, 12)), ifs((12, 12)))


def test_pixels_stay_square():
    x0, x1, y0, y1 = fitted_extent((0.0, 1.0, 0.0, 1.0), 50, 100)
    assert (x1 - x0, y1 - y0) == (2.0, 1.0)
    assert (x0 + x1, y0 + y1) == (1.0, 1.0)


def test_files_round_trip(tmp_path):
    """Points, precision, bound and noise too: the picture is the same to the last bit."""
    for dtype in (torch.float32, torch.float64):
        wild = torch.randn(5, 6, dtype=dtype)
        ifs = IFS(
            wild, bound=0.8, points=300, seed=4, colours=torch.rand(5, 3, dtype=dtype), noise=GaussianNoise(0.7),
            weights=torch.rand(5),
        )  # fmt: skip
        ifs.save(tmp_path / "wild.json")
        back = IFS.load(tmp_path / "wild.json")
        assert (len(back.choices), back.bound, back.parameters_.dtype) == (300, 0.8, dtype)
        assert torch.equal(back.parameters_, ifs.parameters_)
        assert_close(back((20, 20)), ifs((20, 20)))
        assert len(IFS.load(tmp_path / "wild.json", points=20).choices) == 20


def test_files_of_the_first_version(tmp_path):
    content = IFS.preset("fern", points=300).to_dict()
    old = {k: v for k, v in content.items() if k not in ("bound", "dtype", "scale", "points")} | {"version": 1}
    (tmp_path / "old.json").write_text(json.dumps(old))
    assert len(IFS.load(tmp_path / "old.json").choices) == 16384
    (tmp_path / "greedy.json").write_text(json.dumps(content | {"points": 10**12}))
    with pytest.raises(ValueError, match=r"greedy.json: .*`points` must be an integer from 1 to 16777216"):
        IFS.load(tmp_path / "greedy.json")


def test_more_maps_than_a_byte_can_name():
    """A row of 300 dots: maps from 256 on were taken for the first ones."""
    offsets = torch.linspace(0, 1, 300)
    parameters = torch.zeros(300, 6)
    parameters[:, 0], parameters[:, 1], parameters[:, 5] = offsets, -0.999, -0.999
    ifs = IFS(parameters, points=3000, weights=torch.ones(300))
    assert int(ifs.choices.max()) == 299
    assert float(ifs.points().detach()[:, 0].max()) > 0.99
    state = IFS(parameters, points=3000, weights=torch.ones(300), seed=7)
    state.load_state_dict(ifs.state_dict())
    assert_close(state.points(), ifs.points())


def test_other_noise_is_refused_with_the_reason():
    with pytest.raises(
        TypeError, match=r"IFS: `noise` must be GaussianNoise\(scale\).*closed form for normal noise alone"
    ):
        IFS.preset("fern", noise=StudentT(8))
    with pytest.raises(TypeError, match=r"smooth_raster: `noise` must be GaussianNoise\(scale\), in pixels, got 2.0"):
        smooth_raster(torch.rand(3, 2), (4, 4), noise=2.0)  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "Expecting value"),
        ("{}", "not an algonet-ifs file"),
        ("[1]", "no attribute"),
        (json.dumps({"format": "algonet-ifs"}), "missing 'weights'"),
        (
            json.dumps(
                {
                    "format": "algonet-ifs",
                    "weights": [1],
                    "extent": [0, 1, 0, 1],
                    "exposure": 1,
                    "seed": 0,
                    "parameters": [[9]],
                }
            ),
            "must be",
        ),
    ],
)
def test_broken_files_give_one_line(tmp_path, text, reason):
    path = tmp_path / "broken.json"
    path.write_text(text)
    with pytest.raises(
        ValueError, match=r"broken\.json: cannot read an iterated function system: .*" + reason
    ) as caught:
        IFS.load(path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("arguments", "options", "message"),
    [
        ((torch.zeros(0, 6),), {}, "n from 1 on"),
        ((torch.full((1, 6), torch.nan),), {}, "parameters must be finite"),
        ((torch.full((2, 6), 2.0),), {}, "do not contract on average.*pass bound=0.97"),
        ((torch.full((2, 6), -0.5),), {"weights": torch.ones(3)}, "`weights` must be 2 numbers"),
        ((torch.full((2, 6), -0.5),), {"weights": torch.zeros(2)}, "not all 0"),
        ((torch.full((2, 6), -0.5),), {"colours": torch.ones(3, 3)}, r"`colours` must be a tensor \(2, C\)"),
        (
            (torch.full((2, 6), -0.5),),
            {"colours": torch.full((2, 3), 1e30)},
            r"`colours` must lie between -1e\+12 and 1e\+12",
        ),
        ((torch.full((2, 6), -0.5),), {"points": 0}, "`points` must be an integer from 1 on"),
        ((torch.full((2, 2, 6), -0.5),), {}, r"must be \(n, 6\), got \(2, 2, 6\)"),
    ],
)
def test_refuses(arguments, options, message):
    with pytest.raises(ValueError, match=message):
        IFS(*arguments, **options)


def test_unknown_presets_list_the_known():
    with pytest.raises(ValueError, match="unknown system 'oak'; choose one of fern, sierpinski"):
        preset("oak")


def test_forward_is_the_raster_of_its_points():
    ifs = IFS.preset("sierpinski", points=200, exposure=0.7)
    weights = torch.full((200,), 0.7 * 15 * 15 / 200)
    expected = smooth_raster(ifs.points(), (15, 15), extent=ifs.extent, aggregate=Poisson(), weights=weights)
    assert_close(ifs((15, 15)), expected)


def test_noise_is_saved_annealed_hardened_and_learned(tmp_path):
    fern = IFS.preset("fern", points=256, noise=GaussianNoise(2.0))
    assert fern.state_dict()["scale"] == 2.0
    torch.testing.assert_close(fern((24, 24)), fern((24, 24), sigma=2.0))
    fern.save(tmp_path / "fern.json")
    assert float(IFS.load(tmp_path / "fern.json").scale) == 2.0
    Anneal(3.0, 1.0, steps=2, field="scale").attach(fern)
    torch.testing.assert_close(fern((24, 24)), fern((24, 24), sigma=3.0))
    with hardened(fern):
        torch.testing.assert_close(fern((24, 24)), fern((24, 24), sigma=3e-3))
    assert softness_report(fern, (24, 24)).softness == {"IFS.scale": 3.0}
    assert "GaussianNoise, scale=3" in repr(fern)
    learned = IFS.preset("fern", points=256, noise=GaussianNoise(torch.nn.Parameter(torch.tensor(1.5))))
    learned((24, 24)).square().sum().backward()
    assert learned.scale.grad.abs() > 0
    with pytest.raises(TypeError, match="`noise` must be GaussianNoise"):
        IFS.preset("fern", noise=StudentT(8))
