"""The CPU kernel against the dense reference, where it may differ: what it leaves out, and rounding."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
from numba import njit

from algonet.relax import CONORMS, BoundedSum, Maximum, Probabilistic, StudentT
from algonet.render import Camera, FilteredCoverage, icosphere, render_attributes
from algonet.render.kernels.numba import host, tiles
from algonet.render.operation import rasterise
from algonet.render.settings import RasterCall, RasterSettings
from helpers.contract import assert_same_gradients
from render.scenes import random_call

FLOATS = ("points", "attributes", "background", "softness")


def _errors(call: RasterCall) -> list[float]:
    exact = dataclasses.replace(
        call, **{n: getattr(call, n).double() for n in ("points", "attributes", "background", "softness")}
    )
    results, truth = rasterise(call, "numba"), rasterise(exact, "reference")
    return [float((r.double() - t).abs().max()) for r, t in zip(results, truth, strict=True)]


@pytest.mark.parametrize("steepness", [1.0, 5.0, 20.0])
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
    [{}, {"two_sided": False}, {"perspective": False}, {"conorm": Probabilistic()}, {"conorm": BoundedSum(2)}],
    ids=["default", "one-sided", "orthographic", "probabilistic", "bounded-2"],
)
def test_gradients_match_exactly_when_nothing_is_left_out(options: dict) -> None:
    call = random_call(3, faces=12, height=9, width=18, epsilon=1e-12, **options)
    assert_same_gradients(_gradients(call, "numba"), _gradients(call, "reference"), 1.0)


def test_gradients_match_when_faces_are_left_out() -> None:
    call = random_call(4, dtype=torch.float32, steepness=2.0)
    actual, expected = _gradients(call, "numba"), _gradients(call, "reference")
    for a, e in zip(actual, expected, strict=True):
        assert (a - e).norm() < 1e-3 * e.norm()


def test_depths_too_far_apart_for_one_bound_are_exact_too() -> None:
    # exp(-k z) spans exp(-600) to 1 in one tile: the kernel takes a maximum per pixel there
    call = random_call(5, faces=12, steepness=200.0, epsilon=1e-12, height=17, width=16)
    truth = rasterise(call, "reference")
    for r, t in zip(rasterise(call, "numba"), truth, strict=True):
        # Rounding of 1e-16 times exp(k dz) over many faces
        assert (r - t).abs().max() < 1e-7


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
        inputs, module = host._inputs(tensors, settings)
        pairs.append(sum(int(binned.starts[-1]) for _, _, binned in tiles._rounds(inputs, settings, module)))
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
    with pytest.raises(ValueError, match="up to 64, got inf"):
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


@pytest.mark.parametrize("power", [0.0, 1.0, 8.0])
def test_silhouettes_are_right_and_their_loops_vectorised(power: float) -> None:
    """Done pixel by pixel, they took as long as all the faces of a small mesh."""
    module = tiles.kernels("float32", 4)
    total = np.concatenate([[0.0], np.linspace(-3, 3, 61)]).astype(np.float32)
    values, slopes = np.empty_like(total), np.empty_like(total)
    fresh = njit(**module.OPTIONS)(module.silhouettes_of.py_func)
    fresh(total, power, values, slopes)
    exact = torch.tensor(total, dtype=torch.float64, requires_grad=True)
    found = exact / (1 + exact.abs() ** power) ** (1 / power) if power else 1 - exact.exp()
    found.sum().backward()
    assert exact.grad is not None
    np.testing.assert_allclose(values, found.detach(), rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(slopes, exact.grad, rtol=2e-6, atol=1e-6)
    assert " x float>" in next(iter(fresh.inspect_llvm().values())), "LLVM did not vectorise the loop"
