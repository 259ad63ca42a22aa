"""The CUDA kernels against the dense reference: on a GPU where there is one, and in Triton's interpreter everywhere."""

from __future__ import annotations

import dataclasses
import importlib.util
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from algonet.relax import BoundedSum, StudentT
from algonet.render import (
    BlinnPhong,
    Camera,
    FilteredCoverage,
    Headlight,
    Mesh,
    Raster,
    SmoothRenderer,
    icosphere,
    render_attributes,
)
from algonet.render.settings import RasterSettings
from render.scenes import RasterCall, random_call, rasterise

ROOT = Path(__file__).parents[2]
FLOATS = ("points", "attributes", "background", "softness")


def moved(call: RasterCall, **to) -> RasterCall:
    """The call on another device, or in another dtype."""
    floats = {name: getattr(call, name).to(**to) for name in FLOATS}
    device = floats["points"].device
    return dataclasses.replace(
        call, **floats, faces=call.faces.to(device), attribute_faces=call.attribute_faces.to(device)
    )


def gradients(call: RasterCall, backend: str) -> tuple[Raster, list[torch.Tensor]]:
    leaves = [t.detach().clone().requires_grad_() for t in call.tensors[:4]]
    outputs = rasterise(dataclasses.replace(call, **dict(zip(FLOATS, leaves, strict=True))), backend)
    generator = torch.Generator().manual_seed(5)
    weights = [torch.randn(o.shape, generator=generator, dtype=torch.float64).to(o) for o in outputs]
    return outputs, list(torch.autograd.grad(list(outputs), leaves, weights))


def assert_agrees(call: RasterCall, values: float, slopes: float) -> None:
    """Values within `values`; gradients within `slopes` of the reference's norm, and none of them missing.

    Slivers, and depth where there is next to nothing, float32 cannot tell better, nor can the reference: twice its own error is
    granted too.
    """
    (found, by), (truth, right) = gradients(call, "triton"), gradients(moved(call, dtype=torch.float64), "reference")
    likely, rough = gradients(call, "reference") if call.points.dtype == torch.float32 else (truth, right)
    for actual, expected, likewise in zip(found, truth, likely, strict=True):
        granted = 2 * float((likewise.double() - expected).detach().abs().max())
        assert float((actual.double() - expected).detach().abs().max()) <= values + granted
    for actual, expected, likewise in zip(by, right, rough, strict=True):
        granted = 2 * float((likewise.double() - expected).norm())
        assert float((actual.double() - expected).norm()) <= slopes * float(expected.norm()) + granted
        missing = (actual == 0) & (likewise != 0) & (expected.abs() > 1e-3 * expected.abs().max())
        assert not missing.any()


def tiny(seed: int, **options) -> RasterCall:
    return random_call(seed, **{"faces": 4, "height": 6, "width": 11, "epsilon": 1e-12, **options})


def retune(monkeypatch: pytest.MonkeyPatch, **sizes: object) -> None:
    """Other sizes of what kernels take at a time, and no plans that were made with the usual ones."""
    from algonet.core import autograd, operation
    from algonet.core.cache import Cache
    from algonet.render.kernels.triton import plan

    for name, value in sizes.items():
        monkeypatch.setattr(plan, name, value)
    for module in (autograd, operation):
        monkeypatch.setattr(module, "PLANS", Cache("plans of a test", 8))


def through_a_camera(eye: torch.Tensor, vertices: torch.Tensor, faces: torch.Tensor, backend: str) -> torch.Tensor:
    """The picture as channels, rows, columns: its gradient then comes with strides of its own."""
    camera, coverage = Camera.look_at(eye), FilteredCoverage(StudentT(scale=0.3))
    out = render_attributes(
        vertices, faces, vertices, camera, size=(6, 5), coverage=coverage, epsilon=1e-12, backend=backend
    )
    return out.image.permute(2, 0, 1)


def assert_cameras_have_gradients(device: str) -> None:
    """By vertices alone the kernel brings gradients back to the world; by the camera too, torch does."""
    mesh = icosphere(0, 0.9).to(torch.float64).to(device)
    weights = torch.arange(90.0, dtype=torch.float64, device=device).sin().reshape(3, 6, 5)
    for moving in (False, True):
        slopes = []
        for backend in ("triton", "reference"):
            eye = torch.tensor([0.3, 0.2, 2.7], dtype=torch.float64, device=device, requires_grad=moving)
            vertices = mesh.vertices.clone().requires_grad_()
            picture = through_a_camera(eye, vertices, mesh.faces[:3], backend)
            loss = (picture * weights).sum() if moving else picture.sum()
            slopes.append(torch.autograd.grad(loss, [vertices, eye] if moving else [vertices]))
        for found, truth in zip(*slopes, strict=True):
            assert float((found - truth).norm()) <= 1e-7 * float(truth.norm())


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="triton is not installed")
def test_strides_that_kernels_can_walk() -> None:
    from algonet.render.kernels.triton.host import picture_strides
    from algonet.render.kernels.triton.plan import item_stride

    points = torch.zeros(2, 5, 4, 3)
    assert item_stride(points.shape, points.stride(), 2) == 12
    assert item_stride((2, 5, 4, 3), torch.zeros(4, 3).expand(2, 5, 4, 3).stride(), 2) == 0
    assert item_stride((2, 5, 4, 3), torch.zeros(2, 1, 4, 3).expand(2, 5, 4, 3).stride(), 2) is None
    assert item_stride((2, 3, 4), torch.zeros(2, 4, 3).mT.stride(), 2) is None
    image = torch.zeros(2, 6, 5, 3)
    assert picture_strides(image.shape, image.stride(), 3) == (90, 3, 1)
    assert picture_strides((2, 6, 5, 3), torch.zeros(()).expand(2, 6, 5, 3).stride(), 3) == (0, 0, 0)
    assert picture_strides((2, 6, 5, 3), torch.zeros(2, 3, 6, 5).permute(0, 2, 3, 1).stride(), 3) == (90, 1, 30)
    # Rows of a part of a picture do not follow each other
    assert picture_strides((6, 5), torch.zeros(6, 8)[:, :5].stride(), 2) is None


# -- in the interpreter: slow, so scenes are tiny; the variable must be set before triton is imported

interpreted = pytest.mark.skipif(os.environ.get("TRITON_INTERPRET") != "1", reason="run by test_in_the_interpreter")


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="triton is not installed")
@pytest.mark.skipif(os.environ.get("TRITON_INTERPRET") == "1", reason="already there")
def test_in_the_interpreter() -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-k", "interpreted_", __file__]
    environment = {**os.environ, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=3000)
    assert done.returncode == 0, done.stdout[-3000:]
    assert " passed" in done.stdout


@pytest.mark.parametrize(
    "backend", [pytest.param("triton", id="interpreted_triton", marks=interpreted), "numba", "reference"]
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_no_highlight_is_brighter_than_its_light(backend: str, dtype: torch.dtype) -> None:
    """Normals that halve the way to light and eye, or nearly: whatever is above 1, by rounding too, grows with the power."""
    # As far from the eye at all corners: then normals between them point there, too
    sheet = torch.tensor([[-1.0, -1.0, 0.0], [1.0, -1.0, 0.0], [-1.0, 1.0, 0.0], [1.0, 1.0, 0.0]], dtype=dtype)
    eye = torch.tensor([0.0, 0.0, 5.0], dtype=dtype)
    normals = torch.nn.functional.normalize(eye - sheet, dim=-1).requires_grad_()
    mesh = Mesh(sheet, torch.tensor([[0, 1, 2], [2, 1, 3]]), vertex_colors=torch.zeros_like(sheet), normals=normals)
    camera, light = Camera.look_at(eye, fov=4.0), Headlight((1.0, 1.0, 1.0))
    for shininess in (1.0, 1e3, 1e5, 1e7):
        renderer = SmoothRenderer((6, 9), surface=BlinnPhong(shininess, 1.0), two_sided=False, backend=backend).to(
            dtype
        )
        out = renderer(mesh, camera, (light,))
        (slope,) = torch.autograd.grad(out.rgb.sum(), normals)
        assert torch.isfinite(slope).all()
        assert 0.3 < float(out.rgb.detach().max()) <= 1 + 1e-6
    with pytest.raises(ValueError, match="`shininess` must be positive, 1e7 at most"):
        BlinnPhong(float("inf"))


@interpreted
def test_interpreted_kernels_match_the_reference() -> None:
    assert_agrees(tiny(0), 1e-10, 1e-9)


@interpreted
def test_interpreted_options_match_the_reference() -> None:
    call = tiny(1, conorm=BoundedSum(6), two_sided=False, perspective=False, df=2, epsilon=1e-7, over_depth=True)
    # Five attributes are two passes over the channels
    attributes = torch.rand(1, call.attributes.shape[1], 5, dtype=torch.float64)
    background = torch.rand(1, 6, dtype=torch.float64)
    assert_agrees(dataclasses.replace(call, attributes=attributes, background=background), 1e-6, 1e-5)


@interpreted
@pytest.mark.parametrize("places", [(6, 64), (0, 3)], ids=["lists", "lists that are too short"])
def test_interpreted_bins_change_nothing(places: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    call = tiny(2, width=9, epsilon=1e-2)
    whole = rasterise(call, "triton")
    retune(monkeypatch, UNBINNED=0, BIN=8, BIN_STEP=4, PLACES=places)
    assert all(torch.equal(a, b) for a, b in zip(rasterise(call, "triton"), whole, strict=True))


@interpreted
@pytest.mark.parametrize("records", [0, 1 << 20], ids=["made again", "kept"])
@pytest.mark.parametrize("options", [{}, {"deterministic": True}], ids=["bands", "deterministic"])
def test_interpreted_large_faces_and_parts_of_a_batch(
    options: dict, records: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    retune(monkeypatch, LARGE=20, JOBS=7, RECORDS=records, WORKSPACE=1, MEMORY=0, GRADS_MEMORY=1, HUGE=1)
    one, two = tiny(3, **options), tiny(4)
    floats = {name: torch.cat([getattr(one, name), getattr(two, name)]) for name in FLOATS}
    assert_agrees(dataclasses.replace(one, **floats), 1e-10, 1e-9)


@interpreted
def test_interpreted_wide_noise_is_interpolated(monkeypatch: pytest.MonkeyPatch) -> None:
    # The least picture that holds 12 x 12 samples, and tiles as large: the interpreter counts programs, not pixels
    retune(monkeypatch, GATHERS=2, TILE=(16, 16, 1, None), PIXELS=(512, 4))
    call = tiny(5, faces=8, height=14, width=24, scale=100.0, epsilon=1e-4, steepness=2.0)
    assert_agrees(call, 2e-4, 2e-3)


@interpreted
def test_interpreted_steep_depths_under_wide_noise() -> None:
    assert_agrees(tiny(6, steepness=100.0, scale=3.0), 1e-9, 1e-8)


@interpreted
def test_interpreted_gradients_of_cameras() -> None:
    assert_cameras_have_gradients("cpu")


def lit_gradients(
    device: str, backend: str, size: tuple[int, int], normals: bool, dtype: torch.dtype
) -> list[torch.Tensor]:
    """Lit pictures of some faces of a ball, and their gradients by vertices, colours and eye."""
    ball = icosphere(0, 0.9).to(device, dtype)
    faces = ball.faces[:5]
    vertices, eye = ball.vertices.clone().requires_grad_(), torch.tensor([0.3, 0.2, 2.7], device=device, dtype=dtype)
    colors, eye = (0.5 + 0.4 * ball.vertices).requires_grad_(), eye.requires_grad_()
    own = vertices * 1.3 if normals else None
    mesh = Mesh(vertices, faces, vertex_colors=colors, normals=own)
    renderer = SmoothRenderer(size, FilteredCoverage(StudentT(scale=0.4)), epsilon=1e-12, backend=backend).to(
        device, dtype
    )
    out = list(renderer(mesh, Camera.look_at(eye)))[:3]
    weights = [torch.linspace(-1, 2, o.numel(), device=device, dtype=dtype).reshape(o.shape).sin() for o in out]
    return [*out, *torch.autograd.grad(out, [vertices, colors, eye], weights)]


@interpreted
@pytest.mark.parametrize("normals", [False, True], ids=["normals of the faces", "own normals"])
def test_interpreted_lit_pictures(normals: bool) -> None:
    found = lit_gradients("cpu", "triton", (6, 4), normals, torch.float64)
    for actual, right in zip(found, lit_gradients("cpu", "reference", (6, 4), normals, torch.float64), strict=True):
        assert float((actual - right).detach().norm()) <= 1e-8 * float(right.detach().norm())


@interpreted
def test_interpreted_kernels_under_compile_vmap_and_autocast() -> None:
    mesh = icosphere(0, 0.9)
    faces = mesh.faces[:2]
    vertices = mesh.vertices.clone().requires_grad_()
    coverage = FilteredCoverage(StudentT(scale=0.3))

    def render(eye: torch.Tensor, vertices: torch.Tensor) -> torch.Tensor:
        camera = Camera.look_at(eye)
        out = render_attributes(vertices, faces, vertices, camera, size=(8, 4), coverage=coverage, backend="triton")
        return torch.cat([out.image, out.silhouette[..., None], out.depth[..., None]], -1)

    eyes = torch.tensor([[0.0, 0.0, 2.7], [1.0, 0.0, 2.5]])
    expected = render(eyes[1], vertices)
    (slope,) = torch.autograd.grad(expected.square().sum(), vertices)
    # Also that the fake kernel promises the shapes that the true one returns
    compiled = torch.compile(render, fullgraph=True, backend="aot_eager")(eyes[1], vertices)
    torch.testing.assert_close(compiled, expected)
    torch.testing.assert_close(torch.autograd.grad(compiled.square().sum(), vertices)[0], slope)
    with torch.autocast("cpu", torch.bfloat16):
        eye = eyes[1]
        assert render(eye, vertices).dtype == torch.float32
    mapped = torch.func.vmap(render, (0, None))(eyes, vertices.detach())
    torch.testing.assert_close(mapped[1], expected.detach())


# -- on a GPU


@pytest.mark.gpu
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"two_sided": False},
        {"perspective": False},
        {"over_depth": True},
        {"steepness": 100.0, "scale": 4.0},
        {"conorm": BoundedSum(2)},
        {"df": 2},
    ],
    ids=["default", "one-sided", "orthographic", "over-a-depth", "steep", "bounded-2", "df-2"],
)
def test_kernels_match_the_reference_in_float64(options: dict) -> None:
    call = random_call(3, faces=12, height=9, width=18, **{"epsilon": 1e-12, **options})
    if options.get("df") == 2:
        call = random_call(3, faces=12, height=9, width=18, epsilon=1e-6, **options)
    assert_agrees(moved(call, device="cuda"), 1e-6 if "df" in options else 1e-10, 1e-5 if "df" in options else 1e-7)


@pytest.mark.gpu
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("scale", [0.5, 2.0])
def test_kernels_match_the_reference_in_float32(seed: int, scale: float) -> None:
    call = random_call(
        seed, dtype=torch.float32, scale=scale, steepness=2.0, faces=300, height=75, width=90, over_depth=True
    )
    assert_agrees(moved(call, device="cuda"), 3e-4, 1e-3)


@pytest.mark.gpu
def test_gradients_of_cameras() -> None:
    assert_cameras_have_gradients("cuda")


@pytest.mark.gpu
def test_many_faces_in_bins() -> None:
    call = random_call(9, dtype=torch.float32, steepness=2.0, faces=3000, height=64, width=100, over_depth=True)
    assert_agrees(moved(call, device="cuda"), 3e-4, 1e-3)


@pytest.mark.gpu
def test_deterministic_gradients_have_the_same_bits_every_time() -> None:
    call = moved(random_call(5, dtype=torch.float32, faces=500, height=96, width=96, deterministic=True), device="cuda")
    first = gradients(call, "triton")
    for _ in range(3):
        again = gradients(call, "triton")
        assert all(torch.equal(a, b) for a, b in zip([*first[0], *first[1]], [*again[0], *again[1]], strict=True))


def ball(level: int, size: int):
    mesh = icosphere(level, 0.9)
    vertices = mesh.vertices.cuda().requires_grad_()
    faces, camera = mesh.faces.cuda(), Camera.look_at((0.0, 0.0, 2.732)).to("cuda")
    coverage = FilteredCoverage(StudentT(df=8, scale=0.0035), units="ndc")

    def render(vertices: torch.Tensor) -> torch.Tensor:
        out = render_attributes(
            vertices, faces, vertices, camera, size=(size, size), coverage=coverage, backend="triton"
        )
        return torch.cat([out.image, out.silhouette[..., None], out.depth[..., None]], -1)

    return vertices, render


# What inductor would rather have is not the test's business
@pytest.mark.filterwarnings("ignore:TensorFloat32")
@pytest.mark.gpu
def test_compiles_without_a_break_and_runs_under_autocast_and_vmap() -> None:
    vertices, render = ball(2, 48)
    expected = render(vertices)
    (slope,) = torch.autograd.grad(expected.square().sum(), vertices)
    compiled = torch.compile(render, fullgraph=True)(vertices)
    torch.testing.assert_close(compiled, expected)
    (again,) = torch.autograd.grad(compiled.square().sum(), vertices)
    assert (again - slope).norm() < 1e-5 * slope.norm()
    with torch.autocast("cuda", torch.bfloat16):
        torch.testing.assert_close(render(vertices), expected)
    stacked = torch.stack([vertices, 0.8 * vertices]).detach()
    mapped = torch.func.vmap(render)(stacked)
    torch.testing.assert_close(mapped[1], render(stacked[1]))


@pytest.mark.parametrize("epsilon", [1e-6, 1e-4, 1e-2, 0.05, 0.3])
@pytest.mark.parametrize("df", [2, 8, 16])
def test_gradients_leave_out_four_times_as_much(df: int, epsilon: float) -> None:
    settings = RasterSettings(8, 8, FilteredCoverage(StudentT(df=df)).form(), epsilon)
    left_out = [(1 + reach**2) ** (-df / 2) for reach in (settings.reach, settings.near_reach)]
    assert left_out == pytest.approx([epsilon, max(epsilon, min(4 * epsilon, 0.1))])


@pytest.mark.gpu
def test_a_cuda_graph_captures_forward_and_backward() -> None:
    vertices, render = ball(3, 64)
    weights = torch.randn(64, 64, 5, device="cuda")

    def step() -> torch.Tensor:
        return torch.autograd.grad(render(vertices), vertices, weights)[0]

    expected = step()
    graph, found = captured(step)
    found.zero_()
    graph.replay()
    assert (found - expected).norm() < 1e-5 * expected.norm()


def captured(step: Callable[[], Any]) -> tuple[torch.cuda.CUDAGraph, Any]:
    """A CUDA graph of a step, and what its replays write to; it ran once before, on a stream of its own."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = step()
    return graph, found


def default_module(size: int) -> tuple[SmoothRenderer, Callable[[], list[torch.Tensor]], torch.Tensor]:
    """The renderer with its default arguments, a step of it forward and backward, and the vertices that it sees."""
    mesh, camera = icosphere(3, 0.9).to("cuda"), Camera.look_at((0.0, 0.0, 2.732)).to("cuda")
    vertices = mesh.vertices.clone().requires_grad_()
    renderer = SmoothRenderer(size).to("cuda")
    weights = torch.randn(size, size, 3, device="cuda", generator=torch.Generator("cuda").manual_seed(0))

    def step() -> list[torch.Tensor]:
        out = renderer(mesh.replace(vertices=vertices), camera)
        loss = (out.rgb * weights).sum() + out.silhouette.square().sum() + out.depth.sum()
        # A picture with its graph would hold the vertices' node on the capture's stream, which torch warns of later
        return [out.rgb.detach(), *torch.autograd.grad(loss, vertices)]

    return renderer, step, vertices


@pytest.mark.gpu
def test_a_cuda_graph_captures_the_default_module() -> None:
    renderer, step, vertices = default_module(64)
    graph, found = captured(step)
    # What changes in place between replays, they see: vertices, and the softness
    with torch.no_grad():
        vertices.mul_(0.9)
        renderer.scale.fill_(1.7)
    graph.replay()
    for actual, expected in zip(found, step(), strict=True):
        assert (actual - expected).norm() < 1e-5 * expected.norm()


@pytest.mark.filterwarnings("ignore:TensorFloat32")
@pytest.mark.gpu
def test_the_default_module_compiles_without_a_break() -> None:
    mesh, camera = icosphere(2, 0.9).to("cuda"), Camera.look_at((0.0, 0.0, 2.732)).to("cuda")
    renderer = SmoothRenderer(48).to("cuda")

    def loss(vertices: torch.Tensor) -> torch.Tensor:
        out = renderer(mesh.replace(vertices=vertices), camera)
        return out.rgb.square().sum() + out.silhouette.sum() + out.depth.sum()

    found = []
    for function in (loss, torch.compile(loss, fullgraph=True)):
        vertices = mesh.vertices.clone().requires_grad_()
        value = function(vertices)
        found.append((value.detach(), *torch.autograd.grad(value, vertices)))
    for actual, expected in zip(*found, strict=True):
        assert (actual - expected).norm() < 1e-5 * expected.norm()


@pytest.mark.gpu
@pytest.mark.parametrize("normals", [False, True], ids=["normals of the faces", "own normals"])
def test_lit_pictures_match_the_reference_in_float64(normals: bool) -> None:
    found = lit_gradients("cuda", "triton", (24, 32), normals, torch.float64)
    for actual, right in zip(found, lit_gradients("cuda", "reference", (24, 32), normals, torch.float64), strict=True):
        assert float((actual - right).detach().norm()) <= 1e-7 * float(right.detach().norm())


@pytest.mark.gpu
@pytest.mark.parametrize("scale", [0.7, 2.0, 12.0])
def test_small_faces_are_covered_by_a_rule_of_points(scale: float) -> None:
    """A fine ball's faces are small against wide noise: values within 1e-4 of the dense reference, gradients within 1e-3."""
    ball, camera = icosphere(3, 0.9), Camera.look_at(torch.tensor([0.0, 0.0, 2.732], dtype=torch.float64))
    results = []
    for backend, dtype in (("triton", torch.float32), ("reference", torch.float64)):
        vertices = ball.vertices.to("cuda", dtype).requires_grad_()
        out = render_attributes(
            vertices, ball.faces.cuda(), vertices.detach(), camera.to("cuda", dtype), size=(64, 64),
            coverage=FilteredCoverage(StudentT(scale=scale)), backend=backend, background_depth=0.0,
        )  # fmt: skip
        ramp = torch.linspace(0, 3, 64, device="cuda", dtype=dtype).sin()
        loss = (out.image * ramp[:, None]).sum() + (out.silhouette * ramp[:, None]).sum() + (out.depth * ramp).sum()
        results.append(([o.detach().double() for o in out], torch.autograd.grad(loss, vertices)[0].double()))
    (found, slope), (truth, right) = results
    for actual, expected, most in zip(found, truth, (1e-4, 1e-4, 2e-4), strict=True):
        assert float((actual - expected).abs().max()) < most
    assert float((slope - right).norm()) < 1e-3 * float(right.norm())


@pytest.mark.gpu
def test_second_derivatives_go_through_the_reference() -> None:
    vertices, render = ball(0, 12)
    (slope,) = torch.autograd.grad(render(vertices).square().sum(), vertices, create_graph=True)
    (curve,) = torch.autograd.grad(slope.square().sum(), vertices)
    assert torch.isfinite(curve).all()
    assert curve.abs().max() > 0


@pytest.mark.gpu
def test_memory_beyond_inputs_and_outputs() -> None:
    mesh = icosphere(5, 0.9)
    vertices = mesh.vertices.cuda().expand(8, -1, -1).contiguous().requires_grad_()
    faces, camera = mesh.faces.cuda(), Camera.look_at((0.0, 0.0, 2.732)).to("cuda")
    coverage = FilteredCoverage(StudentT(df=8, scale=0.0035), units="ndc")
    for _ in range(2):
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        out = render_attributes(vertices, faces, vertices, camera, size=(512, 512), coverage=coverage, backend="triton")
        outputs = sum(o.nbytes for o in out)
        extra = torch.cuda.max_memory_allocated() - before - outputs
        weights = [torch.ones_like(o) for o in out]
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        grads = torch.autograd.grad(list(out), [vertices], weights)
        later = torch.cuda.max_memory_allocated() - before - sum(g.nbytes for g in grads)
        del out, grads, weights
    # Samples take 88 MiB, records of the faces 22.5 and their lists 5
    assert extra < 126 << 20
    # Gradients at the pixels of four items
    assert later < 33 << 20


@pytest.mark.gpu
@pytest.mark.parametrize("shading", ["pixel", "vertex"])
def test_deterministic_pictures_and_gradients_are_the_same_bits(shading) -> None:
    mesh, camera = icosphere(4).to("cuda"), Camera.look_at((0.3, 0.2, 3.0)).to("cuda")
    renderer = SmoothRenderer(96, shading=shading, deterministic=True).to("cuda")

    def once() -> list[torch.Tensor]:
        vertices = mesh.vertices.clone().requires_grad_()
        rgb = renderer(mesh.replace(vertices=vertices), camera).rgb
        return [rgb.detach(), *torch.autograd.grad(rgb.square().sum(), vertices)]

    first = once()
    for _ in range(4):
        assert all(torch.equal(a, b) for a, b in zip(first, once(), strict=True))
