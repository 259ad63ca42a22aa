"""The CPU kernel against the dense reference, where it may differ: what it leaves out, and rounding."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
from numba import njit

from algonet.core.identity import Signature, specs
from algonet.relax import CONORMS, BoundedSum, Maximum, StudentT
from algonet.render import Camera, FilteredCoverage, icosphere, render_attributes
from algonet.render.kernels.numba import host, tiles
from algonet.render.settings import RasterSettings
from helpers.contract import assert_same_gradients
from render.scenes import RasterCall, random_call, rasterise

FLOATS = ("points", "attributes", "background", "softness")


def _errors(call: RasterCall) -> list[float]:
    exact = dataclasses.replace(
        call, **{n: getattr(call, n).double() for n in ("points", "attributes", "background", "softness")}
    )
    results, truth = rasterise(call, "numba"), rasterise(exact, "reference")
    # Depth counts as far as something is there
    there = truth.silhouette
    shares = (torch.ones_like(there)[..., None], torch.ones_like(there), there)
    return [float(((r.double() - t).abs() * s).max()) for r, t, s in zip(results, truth, shares, strict=True)]


@pytest.mark.parametrize("steepness", [1.0, 20.0, 100.0])
@pytest.mark.parametrize("scale", [0.5, 2.0])
def test_nothing_above_epsilon_is_left_out(steepness: float, scale: float) -> None:
    for seed in range(2):
        image, silhouette, depth = _errors(random_call(seed, steepness=steepness, scale=scale))
        assert image <= 1e-4
        assert silhouette <= 1e-4
        # Relative to depths of about 3
        assert depth <= 3e-4


def test_float32_rounding_stays_below_epsilon_for_moderate_steepness() -> None:
    for seed in range(3):
        image, silhouette, depth = _errors(random_call(seed, dtype=torch.float32, steepness=2.0))
        assert image <= 1e-4
        assert silhouette <= 1e-4
        assert depth <= 3e-4


def _gradients(call: RasterCall, backend: str) -> list[torch.Tensor]:
    leaves = [t.detach().clone().requires_grad_() for t in call.tensors[:4]]
    moved = dataclasses.replace(call, **dict(zip(FLOATS, leaves, strict=True)))
    generator = torch.Generator().manual_seed(5)
    outputs = rasterise(moved, backend)
    score = sum((o * torch.randn(o.shape, generator=generator, dtype=torch.float64).to(o)).sum() for o in outputs)
    return list(torch.autograd.grad(score, leaves))  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize(
    "options",
    [{}, {"two_sided": False}, {"perspective": False}, {"over_depth": True}, {"conorm": BoundedSum(2)}],
    ids=["default", "one-sided", "orthographic", "over-depth", "bounded-2"],
)
def test_gradients_match_exactly_when_nothing_is_left_out(options: dict) -> None:
    call = random_call(3, faces=12, height=9, width=18, epsilon=1e-12, **options)
    assert_same_gradients(_gradients(call, "numba"), _gradients(call, "reference"), 1.0)


def test_gradients_match_when_faces_are_left_out() -> None:
    for seed in (4, 6, 8):
        # Depth of next to nothing would count as much as that of a full layer; over a background it does not
        single = random_call(seed, dtype=torch.float32, steepness=2.0, over_depth=True)
        call = dataclasses.replace(single, **{n: getattr(single, n).double() for n in FLOATS})
        exact = _gradients(call, "reference")
        for a, s, e in zip(_gradients(call, "numba"), _gradients(single, "numba"), exact, strict=True):
            # Measured: 1.1e-4, by the scale of the noise
            assert (a - e).norm() < 5e-4 * e.norm()
            # Measured: 9e-4, from one face 0.004 pixels wide. Its coverage of 1e-3 is what is left of sums over edges, which
            # float32 rounds at 1e-8 to 1e-7; over coverage and width that is a percent of the face's own gradient. Half a
            # unit in the last place of the points changes the exact gradient by 1e-6 only.
            assert (s.double() - e).norm() < 5e-3 * e.norm()


def test_the_reference_finds_what_is_hidden_in_float32() -> None:
    """Steep depth: from where all is hidden, what is shown must not be lost in rounding."""
    for seed in range(4):
        generator = torch.Generator().manual_seed(seed)
        corners = torch.randn(60, 3, generator=generator).double() * torch.tensor([1.5, 1.5, 0.8]).double()
        faces, images = torch.arange(60).reshape(20, 3), []
        for dtype in (torch.float32, torch.float64):
            camera = Camera.look_at((0.0, 0.0, 4.0), fov=45.0).to(dtype)
            out = render_attributes(
                corners.to(dtype), faces, corners.to(dtype), camera, size=(32, 32), depth_steepness=100.0, backend="reference"
            )  # fmt: skip
            images.append(out.image.double())
        # Measured: 1e-5; of coordinates up to 4
        assert float((images[0] - images[1]).abs().max()) < 1e-4


@pytest.mark.parametrize("scale", [2.0, 4.0, 8.0])
def test_large_faces_that_overlap_are_those_of_the_reference(scale: float) -> None:
    """Wide noise and steep depth: what is hidden changes along edges finer than the noise."""
    for seed in range(3):
        call = random_call(seed, faces=10, height=32, width=36, steepness=100.0, scale=scale)
        depth = call.points[..., 2:]
        centre = torch.tensor([18.0, 16.0], dtype=torch.float64)
        screen = (centre + 3 * (call.points[..., :2] / depth - centre)) * depth
        image, silhouette, depth = _errors(dataclasses.replace(call, points=torch.cat([screen, depth], -1)))
        assert image <= 1e-4
        assert silhouette <= 1e-4
        assert depth <= 3e-4


def test_same_bits_on_every_run_and_for_any_number_of_threads() -> None:
    call = random_call(6, dtype=torch.float32)
    threads = torch.get_num_threads()
    found = []
    try:
        for count in (1, 2, 3, 2):
            torch.set_num_threads(count)
            found.append([*rasterise(call, "numba"), *_gradients(call, "numba")])
    finally:
        torch.set_num_threads(threads)
    assert all(torch.equal(a, b) for other in found[1:] for a, b in zip(found[0], other, strict=True))


def test_rounds_of_items_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    call = random_call(7, faces=10)
    parts = [t.expand(5, *t.shape[1:]).clone() for t in call.tensors[:4]]
    batch = dataclasses.replace(call, **dict(zip(FLOATS, parts, strict=True)))
    whole, slopes = rasterise(batch, "numba"), _gradients(batch, "numba")
    monkeypatch.setattr(tiles, "_ROUND", 1)
    assert all(torch.equal(a, b) for a, b in zip(rasterise(batch, "numba"), whole, strict=True))
    assert all(torch.equal(a, b) for a, b in zip(_gradients(batch, "numba"), slopes, strict=True))


def test_fresh_memory_is_never_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every place the kernel allocates is filled with NaN first: a result that shows one was not written."""
    call = random_call(8, dtype=torch.float32, faces=10)
    clean = [*rasterise(call, "numba"), *_gradients(call, "numba")]

    def poisoned(shape, dtype=np.float64):
        array = np.zeros(shape, dtype)
        array.fill(np.nan if np.issubdtype(array.dtype, np.floating) else 1 << 40)
        return array

    monkeypatch.setattr(host.np, "empty", poisoned)
    again = [*rasterise(call, "numba"), *_gradients(call, "numba")]
    assert all(torch.equal(a, b) for a, b in zip(again, clean, strict=True))


def test_cost_grows_with_visible_area_not_with_faces_times_pixels() -> None:
    pairs = []
    for level in (3, 4, 5):
        mesh = icosphere(level, 0.9)
        camera = Camera.look_at((0.0, 0.0, 2.732))
        matrix = camera.pixel_matrix((256, 256))
        points = (mesh.vertices @ matrix[:, :3].T + matrix[:, 3])[None]
        softness = torch.tensor([[0.45, 5.0, 0.1]])
        tensors = [points, mesh.vertices[None], torch.zeros(1, 4), softness, mesh.faces, mesh.faces]
        settings = RasterSettings(256, 256)
        plan = host.RenderAttributesPlan(Signature(settings, specs(tensors), (False,) * 6))
        arrays = plan.arrays(tensors, (4, 5))
        pairs.append(int(plan.scene(arrays, plan.grids(arrays[3][:, 0])).pairs.sum()))
    # Sixteen times the faces on the same area; each pair is a face and a tile of 256 pixels, of which there are 256
    assert pairs[2] < 16 * pairs[0]
    assert pairs[2] < 0.02 * 20480 * 256


@pytest.mark.parametrize("family", CONORMS, ids=lambda f: f.__name__)
def test_every_conorm_renders(family) -> None:
    mesh = icosphere(0)
    camera = Camera.look_at((0.0, 0.0, 3.0))
    vertices = mesh.vertices.clone().requires_grad_()
    coverage = FilteredCoverage(StudentT(scale=0.2))
    out = render_attributes(vertices, mesh.faces, vertices, camera, size=(16, 16), conorm=family(), coverage=coverage)
    assert float(out.silhouette.detach().max()) > 0.9
    assert 0 <= float(out.silhouette.detach()[0, 0]) < 1e-3
    (slope,) = torch.autograd.grad(out.silhouette.sum() + out.image.sum(), vertices)
    assert torch.isfinite(slope).all()


def test_a_kernel_says_why_it_cannot() -> None:
    call = random_call(9, faces=2, conorm=Maximum())
    with pytest.raises(ValueError, match="not Maximum"):
        rasterise(call, "numba")


def test_conorms_of_ones_own_run_on_kernels_unless_they_change_the_formula() -> None:
    class Renamed(BoundedSum): ...

    class Halved(BoundedSum):
        def bound(self, total: torch.Tensor) -> torch.Tensor:
            return super().bound(total) / 2

    renamed, plain = (rasterise(random_call(9, faces=2, conorm=c), "numba") for c in (Renamed(4), BoundedSum(4)))
    assert torch.equal(renamed.silhouette, plain.silhouette)
    with pytest.raises(ValueError, match="not Halved"):
        rasterise(random_call(9, faces=2, conorm=Halved(4)), "numba")
    with pytest.raises(ValueError, match="up to 1024, got inf"):
        rasterise(random_call(9, faces=2, conorm=BoundedSum(float("inf"))), "numba")


def test_the_scale_in_ndc_is_in_halves_of_the_height() -> None:
    mesh, camera = icosphere(1), Camera.look_at((0.0, 0.0, 3.0))

    def silhouette(coverage: FilteredCoverage) -> torch.Tensor:
        return render_attributes(
            mesh.vertices, mesh.faces, mesh.vertices, camera, size=(20, 30), coverage=coverage
        ).silhouette

    pixels = silhouette(FilteredCoverage(StudentT(scale=2.0)))
    assert torch.equal(pixels, silhouette(FilteredCoverage(StudentT(scale=0.2), units="ndc")))
    assert not torch.allclose(pixels, silhouette(FilteredCoverage(StudentT(scale=1.0))))


@pytest.mark.parametrize("power", [2.0, 8.0, 1024.0])
def test_silhouettes_are_right_and_their_loops_vectorised(power: float) -> None:
    """Done pixel by pixel, they took as long as all the faces of a small mesh."""
    module = tiles.kernels("float32", 4)
    side = np.concatenate([[0.0], np.geomspace(1e-6, 3, 15)])
    totals = np.stack([x.ravel() for x in np.meshgrid(side, side)], -1).astype(np.float32)
    found = np.empty((3, len(totals)), np.float32)
    fresh = njit(**module.OPTIONS)(module.silhouettes_of.py_func)
    fresh(totals, power, *found)
    exact = torch.tensor(totals, dtype=torch.float64, requires_grad=True)
    sides = exact.clamp_min(1e-30)
    joined = torch.logsumexp(power * sides.log(), -1)
    value = torch.exp(-torch.nn.functional.softplus(-joined) / power)
    (slopes,) = torch.autograd.grad(value.sum(), exact)
    np.testing.assert_allclose(found[0], value.detach(), rtol=1e-6, atol=1e-6)
    # The powers of equal sums differ by 1024 roundings
    np.testing.assert_allclose(found[1:].T[1:], slopes[1:], atol=2e-4)
    assert " x float>" in next(iter(fresh.inspect_llvm().values())), "LLVM did not vectorise the loop"
