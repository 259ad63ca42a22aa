"""`SmoothRenderer` as people call it: default arguments, pictures of usual sizes, background in sight.

Every output's gradient by every input is finite, and right: along a random direction it is what central differences in
float64 say. Where kernels leave out what weighs less than epsilon the picture steps by as little, which differences see.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from algonet.render import (
    AmbientLight,
    BlinnPhong,
    Camera,
    DirectionalLight,
    Mesh,
    PointLight,
    SmoothRenderer,
    box,
    flatten_loss,
    icosphere,
    torus,
)
from helpers.differences import assert_gradients_are_right

MESHES = {"sphere": icosphere(2), "box": box(), "torus": torus(segments=(16, 8))}


def random_eye(generator: torch.Generator) -> Tensor:
    eye = torch.randn(3, generator=generator, dtype=torch.float64)
    return 3 * eye / eye.norm()


@pytest.mark.parametrize("name", MESHES)
@pytest.mark.parametrize("size", [64, 128, 256])
def test_gradients_with_default_arguments(name: str, size: int) -> None:
    mesh = MESHES[name].to(torch.float64)
    renderer = SmoothRenderer((size, size)).double()

    def render(vertices: Tensor, eye: Tensor):
        return renderer(mesh.replace(vertices=vertices), Camera.look_at(eye))

    eye = random_eye(torch.Generator().manual_seed(size))
    assert_gradients_are_right(render, {"vertices": mesh.vertices, "eye": eye})


@pytest.mark.parametrize("size", [64, 128, 256])
def test_pictures_are_those_of_the_reference(size: int) -> None:
    mesh, camera = icosphere(0, 0.9), Camera.look_at(random_eye(torch.Generator().manual_seed(size)).float())
    # Depth is composed: where epsilon leaves nothing of what covers a pixel, nothing has a depth
    options = {"size": (size, size), "background_depth": 0.0}
    with torch.no_grad():
        ours = SmoothRenderer(**options)(mesh, camera)
        truth = SmoothRenderer(**options, backend="reference").double()
        right = truth(mesh.to(torch.float64), camera.to(torch.float64))
    for a, b in zip(ours[:3], right[:3], strict=True):
        assert torch.isfinite(a).all()
        assert (a - b).abs().max() < 1e-4


@pytest.mark.parametrize("size", [64, 128])
def test_second_derivatives_are_those_of_the_kernels_gradient(size: int) -> None:
    """The change of the gradient along a direction, which re-enters the reference, against differences of the kernel's.

    What the kernel leaves out below epsilon makes its gradient step, which differences take for slopes: here it leaves
    out next to nothing.
    """
    generator = torch.Generator().manual_seed(size)
    corners = torch.tensor([[1.0, 1.0, 1.0], [1.0, -1.0, -1.0], [-1.0, 1.0, -1.0], [-1.0, -1.0, 1.0]]).double() * 0.6
    mesh = Mesh(corners, torch.tensor([[0, 1, 2], [0, 3, 1], [0, 2, 3], [1, 3, 2]]))
    camera, renderer = Camera.look_at(random_eye(generator)), SmoothRenderer((size, size), epsilon=1e-10).double()
    weights = torch.randn(size, size, 3, generator=generator, dtype=torch.float64)
    step, way = 1e-6, torch.randn(4, 3, generator=generator, dtype=torch.float64)

    def slope(vertices: Tensor, create_graph: bool = False) -> Tensor:
        out = renderer(mesh.replace(vertices=vertices), camera)
        loss = (out.rgb * weights).sum() + out.depth.square().sum() + out.silhouette.square().sum()
        return torch.autograd.grad(loss, vertices, create_graph=create_graph)[0]

    vertices = corners.clone().requires_grad_()
    (curve,) = torch.autograd.grad((slope(vertices, create_graph=True) * way).sum(), vertices)
    above, below = (slope((corners + s * step * way).requires_grad_()) for s in (1, -1))
    expected = (above - below) / (2 * step)
    assert torch.isfinite(curve).all()
    assert (curve - expected).norm() < 2e-3 * expected.norm()
    plain = SmoothRenderer((size, size)).double()(mesh.replace(vertices=vertices), camera)
    (first,) = torch.autograd.grad((plain.rgb * weights).sum(), vertices, create_graph=True)
    assert torch.isfinite(torch.autograd.grad(first.square().sum(), vertices)[0]).all()


def test_the_module_itself_compiles_with_default_arguments() -> None:
    mesh, camera = icosphere(0, 0.9), Camera.look_at((0.4, 0.3, 3.0))
    renderer = SmoothRenderer()
    compiled = torch.compile(renderer, fullgraph=True, backend="aot_eager")
    for eye in ((0.4, 0.3, 3.0), (3.0, 0.3, 0.4)):
        camera = Camera.look_at(eye)
        for a, b in zip(compiled(mesh, camera), renderer(mesh, camera), strict=True):
            torch.testing.assert_close(a, b)


def test_a_compiled_module_follows_its_softness() -> None:
    mesh, camera, renderer = icosphere(1), Camera.look_at((0.0, 0.0, 2.732)), SmoothRenderer(24)
    compiled = torch.compile(renderer, fullgraph=True, backend="aot_eager")
    before = compiled(mesh, camera).silhouette.detach()
    for name, value in renderer.state_dict().items():
        if "scale" in name:
            renderer.set_softness(name, 8 * float(value))
    after, expected = compiled(mesh, camera).silhouette, renderer(mesh, camera).silhouette
    torch.testing.assert_close(after, expected)
    assert (after - before).abs().max() > 0.1


@pytest.mark.parametrize("shading", ["pixel", "vertex"])
def test_gradients_by_everything(shading: str) -> None:
    ball = icosphere(1).to(torch.float64)
    # Without epsilon's steps, which noise of many pixels makes large
    options = {"surface": BlinnPhong(8.0), "shading": shading, "epsilon": 1e-9}

    def render(vertices, eye, colors, sun, lamp, glow, scale, depth_steepness, background):
        renderer = SmoothRenderer((20, 24), background=background, **options).double()
        mesh = ball.replace(vertices=vertices, vertex_colors=colors)
        lights = [AmbientLight(glow), DirectionalLight(sun), PointLight(lamp, radius=2.0)]
        softness = {"scale": scale, "depth_steepness": depth_steepness}
        return torch.func.functional_call(renderer, softness, (mesh, Camera.look_at(eye), lights))

    generator = torch.Generator().manual_seed(5)
    render_inputs = {
        "vertices": ball.vertices,
        "eye": random_eye(generator),
        "colors": torch.rand(ball.vertices.shape, generator=generator, dtype=torch.float64),
        "sun": torch.tensor([0.3, -1.0, 0.4], dtype=torch.float64),
        "lamp": torch.tensor([1.0, 2.0, -2.0], dtype=torch.float64),
        "glow": torch.rand(3, generator=generator, dtype=torch.float64),
        "scale": torch.tensor(0.8, dtype=torch.float64),
        "depth_steepness": torch.tensor(4.0, dtype=torch.float64),
        "background": torch.rand(3, generator=generator, dtype=torch.float64),
    }
    assert_gradients_are_right(render, render_inputs)


def all_gradients(render: Callable[[Tensor, Tensor], tuple[Tensor, ...]], *inputs: Tensor) -> list[Tensor]:
    outputs = [o for o in render(*inputs) if o.numel()]
    assert all(torch.isfinite(o).all() for o in outputs)
    return [g for o in outputs for g in torch.autograd.grad(o.float().mean(), inputs, retain_graph=True)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("name", MESHES)
def test_no_gradient_is_nan_at_the_default_size(name: str, dtype: torch.dtype) -> None:
    mesh, generator = MESHES[name], torch.Generator().manual_seed(3)
    for _ in range(2):
        eye = random_eye(generator).float().requires_grad_()
        vertices = mesh.vertices.to(dtype).requires_grad_()

        def render(vertices: Tensor, eye: Tensor):
            return SmoothRenderer()(mesh.replace(vertices=vertices), Camera.look_at(eye))

        assert all(torch.isfinite(g).all() for g in all_gradients(render, vertices, eye))


DEGENERATE = {
    "a point": torch.zeros(4, 3),
    "a line": torch.tensor([[0.0, 0.0, 0.0], [1.0, 0.0, 0.0], [2.0, 0.0, 0.0], [0.5, 0.0, 0.0]]),
    "nearly a line": torch.tensor([[0.0, 0.0, 0.0], [1.0, 1e-7, 0.0], [2.0, 0.0, 0.0], [0.5, 0.0, 1e-8]]),
    "tiny": 1e-7 * torch.tensor([[0.0, 0.0, 0.0], [1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]]),
    "one face of none": torch.tensor([[0.0, 0.0, 0.0], [0.0, 0.0, 0.0], [0.0, 1.0, 0.0], [1.0, 0.0, 0.0]]),
}


@pytest.mark.parametrize("shading", ["pixel", "vertex"])
@pytest.mark.parametrize("name", DEGENERATE)
def test_degenerate_faces_have_finite_gradients(name: str, shading: str) -> None:
    faces = torch.tensor([[0, 1, 2], [0, 2, 3], [1, 1, 3]])
    vertices, eye = DEGENERATE[name].clone().requires_grad_(), torch.tensor([0.0, 0.0, 3.0], requires_grad=True)

    def render(vertices: Tensor, eye: Tensor):
        renderer = SmoothRenderer((64, 64), shading=shading, surface=BlinnPhong())
        # One light lies on a vertex, and so does the eye's target
        lights = [AmbientLight(), DirectionalLight(), PointLight((0.0, 0.0, 0.0))]
        return renderer(Mesh(vertices, faces), Camera.look_at(eye), lights)

    assert all(torch.isfinite(g).all() for g in all_gradients(render, vertices, eye))
    (slope,) = torch.autograd.grad(flatten_loss(Mesh(vertices, faces)), vertices)
    assert torch.isfinite(slope).all()


def test_normals_do_not_depend_on_the_size_of_the_mesh() -> None:
    ball = torus()
    expected = ball.vertex_normals()
    for size in (1e-9, 1e-4, 1e6):
        scaled = ball.replace(vertices=size * ball.vertices)
        assert torch.allclose(scaled.vertex_normals(), expected, atol=1e-5)
        assert torch.allclose(scaled.face_normals(), ball.face_normals(), atol=1e-5)
    assert torch.allclose(expected.norm(dim=-1), torch.ones(len(expected)), atol=1e-6)
