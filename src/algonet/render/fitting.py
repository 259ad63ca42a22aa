"""Fitting: a mesh to its pictures, a camera to one picture. From soft, where gradients reach far, to sharp."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from algonet.relax import Anneal, BoundedSum, StudentT

from .cameras import Camera
from .coverage import FilteredCoverage
from .lights import AmbientLight, Light
from .losses import Topology, edge_length_loss, flatten_loss, image_l1, laplacian_loss, silhouette_iou
from .meshes import Mesh
from .modules import SmoothRenderer
from .procedural import icosphere

#: Light from everywhere: colours are seen as they are.
UNLIT = (AmbientLight((1.0, 1.0, 1.0)),)


@dataclass(frozen=True, eq=False)
class MeshFit:
    """The fitted `mesh`, and per step: total loss, the pictures' part, and the noise's scale."""

    mesh: Mesh
    history: list[dict[str, float]]


@dataclass(frozen=True, eq=False)
class CameraFit:
    """The fitted `camera` (or batch), the final loss of each, and per step: mean loss and the noise's scale."""

    camera: Camera
    losses: Tensor
    history: list[dict[str, float]]


@dataclass(frozen=True)
class MeshWeights:
    """How much each regulariser of `fit_mesh` counts against the pictures."""

    laplacian: float = 20.0
    flatten: float = 0.01
    edges: float = 0.02
    color: float = 1.0


def fit_mesh(
    targets: Tensor,
    cameras: Camera,
    template: Mesh | None = None,
    *,
    steps: int = 300,
    learning_rate: float = 0.02,
    scales: tuple[float, float] = (4.0, 0.7),
    views: int | None = 8,
    weights: MeshWeights = MeshWeights(),
    lights: Sequence[Light] = UNLIT,
    two_sided: bool = False,
    progress: bool = False,
    seed: int = 0,
) -> MeshFit:
    """Move the template's vertices (and learn its colours) until it looks like the targets from all cameras.

    `targets` are silhouettes (N, H, W), or colour with alpha (N, H, W, 4); `cameras` is a batch of N. Minimises 1 - IoU of
    the silhouettes, plus L1 of the colours, plus the regularisers, with Adam, while the noise's scale falls geometrically
    between `scales` (in pixels; while it is large, smaller pictures are rendered). `views` pictures are drawn per step (None:
    all). The template is taken to be closed; for open ones set `two_sided`. Interrupting keeps what is there so far.

    >>> cameras = Camera.look_at(torch.tensor([[0.0, 0.0, 3.0], [3.0, 0.0, 0.0]]))
    >>> fit = fit_mesh(torch.zeros(2, 16, 16), cameras, icosphere(1), steps=2)
    >>> len(fit.history)
    2
    """
    template = icosphere(3, 0.7) if template is None else template
    _check_targets(targets, cameras, steps)
    colored = targets.dim() == 4
    targets = targets.to(template.vertices)
    renderer = _renderer(scales[0], two_sided)
    anneal = Anneal(scales[0], scales[1], steps)
    pyramid = _Pyramid(targets if colored else targets[..., None])
    topology = Topology.of(template)
    moves = torch.zeros_like(template.vertices, requires_grad=True)
    colors = template.vertex_colors
    colors = torch.full_like(template.vertices, 0.5) if colors is None else colors
    paint = torch.logit(colors.detach().clamp(0.02, 0.98)).requires_grad_(colored)
    optimizer = torch.optim.Adam([{"params": [moves]}, {"params": [paint], "lr": 3 * learning_rate}], lr=learning_rate)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: _decay(step / steps))
    generator = torch.Generator().manual_seed(seed)
    passed: list[Tensor] = []

    def shape() -> Mesh:
        return template.replace(
            vertices=template.vertices + moves, vertex_colors=torch.sigmoid(paint), face_colors=None
        )

    with _interruptible(), _bar(range(steps), "fitting the mesh", progress) as numbers:
        for step in numbers:
            mesh = shape()
            chosen = _draw(len(targets), views, generator).to(targets.device)
            target = pyramid.set_scale(renderer, anneal.value(step))[chosen]
            out = renderer(mesh, cameras[chosen], lights)
            seen = silhouette_iou(out.silhouette, target[..., -1])
            if colored:
                seen = seen + weights.color * image_l1(out.rgb, target[..., :3] * target[..., 3:])
            loss = (
                seen
                + weights.laplacian * laplacian_loss(mesh, topology)
                + weights.flatten * flatten_loss(mesh, topology)
            )
            loss = loss + weights.edges * edge_length_loss(mesh, topology)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
            passed.append(torch.stack([loss.detach(), seen.detach()]))
    # Read at the end: a look at every step would wait for the device
    history = [
        {"loss": both[0], "pictures": both[1], "scale": anneal.value(step)}
        for step, both in enumerate(torch.stack(passed).tolist() if passed else [])
    ]
    with torch.no_grad():
        mesh = shape()
        detached = mesh.replace(vertices=mesh.vertices.detach(), vertex_colors=mesh.vertex_colors if colored else None)
    return MeshFit(detached, history)


def fit_camera(
    mesh: Mesh,
    image: Tensor,
    start: Camera,
    *,
    steps: int = 200,
    learning_rate: float = 0.1,
    scales: tuple[float, float] | None = None,
    stages: int = 8,
    lights: Sequence[Light] = UNLIT,
    move: bool = True,
    two_sided: bool = False,
    progress: bool = False,
) -> CameraFit:
    """The camera from which the mesh looks like `image`, found from the camera `start` (or from each of a batch of them).

    `image` is a silhouette (H, W) or colour with alpha (H, W, 4). The camera is turned about the mesh's middle and, with
    `move`, shifted. At each stage both the rendering and the image are blurred by noise of the same scale, which falls
    geometrically between `scales` (in pixels; default: a quarter of the image down to 0.7): far away, the blurred
    pictures still overlap and pull. `scales=(s, s)` keeps it constant. The mesh is taken to be closed, whose one-sided
    silhouette is exactly the blurred one; for open ones set `two_sided`.
    """
    if image.dim() not in (2, 3) or (image.dim() == 3 and image.shape[-1] != 4):
        raise ValueError(
            f"fit_camera: `image` must be a silhouette (H, W) or RGBA (H, W, 4), got {tuple(image.shape)}."
        )
    if steps < 1 or stages < 1:
        raise ValueError(f"fit_camera: `steps` and `stages` must be at least 1, got {steps} and {stages}.")
    height, width = image.shape[:2]
    scales = scales if scales is not None else (max(1.0, max(height, width) / 4), 0.7)
    image = image.to(mesh.vertices)
    single = not start.batch_shape
    camera = start if not single else Camera(start.matrix[None], start.position[None], start.perspective, start.near)
    renderer = _renderer(scales[0], two_sided)
    pose = _Pose(camera, (mesh.vertices.amin(-2) + mesh.vertices.amax(-2)) / 2, move)
    optimizer = torch.optim.Adam(pose.groups(learning_rate), lr=learning_rate)
    levels = [scales[0] * (scales[1] / scales[0]) ** (i / max(1, stages - 1)) for i in range(stages)]
    pyramids = [_Pyramid(_target(image, level)[None]) for level in levels]
    passed: list[Tensor] = []
    losses = torch.zeros(())
    with _interruptible(), _bar(range(steps), "fitting the camera", progress) as numbers:
        for step in numbers:
            stage = min(stages - 1, step * stages // steps)
            target = pyramids[stage].set_scale(renderer, levels[stage])
            for group in optimizer.param_groups:
                group["lr"] = group["base"] * _decay(step / steps)
            out = renderer(mesh, pose(), lights)
            losses = _difference(out, target)
            optimizer.zero_grad()
            losses.sum().backward()
            optimizer.step()
            passed.append(losses.detach().mean())
    history = [
        {"loss": loss, "scale": levels[min(stages - 1, step * stages // steps)]}
        for step, loss in enumerate(torch.stack(passed).tolist() if passed else [])
    ]
    with torch.no_grad():
        found = pose()
    return CameraFit(found[0] if single else found, losses.detach()[0] if single else losses.detach(), history)


class _Pose:
    """Cameras moved rigidly about a centre: a quaternion and a shift each."""

    def __init__(self, camera: Camera, centre: Tensor, move: bool):
        self.camera, self.centre, self.move = camera, centre.detach(), move
        count = camera.batch_shape[0]
        self.turn = torch.zeros(count, 3, dtype=camera.matrix.dtype, device=camera.matrix.device, requires_grad=True)
        self.shift = torch.zeros_like(self.turn, requires_grad=move)

    def groups(self, rate: float) -> list[dict[str, Any]]:
        size = float((self.camera.position - self.centre).norm(dim=-1).mean())
        groups = [{"params": [self.turn], "base": rate}]
        # Half as fast as turning, measured at the distance between camera and mesh
        return [*groups, {"params": [self.shift], "base": rate * size / 6}] if self.move else groups

    def __call__(self) -> Camera:
        rotation = rotation_matrix(self.turn)
        shift = self.centre + self.shift - (rotation @ self.centre[..., None])[..., 0]
        top = torch.cat([rotation, shift[..., None]], -1)
        last = top.new_tensor([0.0, 0.0, 0.0, 1.0]).expand(len(top), 1, 4)
        rigid = torch.cat([top, last], -2)
        eye = (rotation.mT @ (self.camera.position - shift)[..., None])[..., 0]
        return Camera(self.camera.matrix @ rigid, eye, self.camera.perspective, self.camera.near)


def rotation_matrix(turn: Tensor) -> Tensor:
    """Rotations (*B, 3, 3) from (*B, 3): the quaternion (1, turn), normalised. Smooth, and the identity at 0.

    >>> rotation_matrix(torch.zeros(3))
    tensor([[1., 0., 0.],
            [0., 1., 0.],
            [0., 0., 1.]])
    """
    x, y, z = turn.unbind(-1)
    n = 1 / (1 + turn.square().sum(-1))
    rows = [
        1 - 2 * n * (y * y + z * z), 2 * n * (x * y - z), 2 * n * (x * z + y),
        2 * n * (x * y + z), 1 - 2 * n * (x * x + z * z), 2 * n * (y * z - x),
        2 * n * (x * z - y), 2 * n * (y * z + x), 1 - 2 * n * (x * x + y * y),
    ]  # fmt: skip
    return torch.stack(rows, -1).reshape(*turn.shape[:-1], 3, 3)


def rotation_error(a: Camera, b: Camera) -> Tensor:
    """The angle, in degrees, between the directions of view and roll of two cameras (or batches)."""
    ra, rb = (torch.nn.functional.normalize(c.matrix[..., :3, :3].double(), dim=-1) for c in (a, b))
    cosine = ((ra @ rb.mT).diagonal(dim1=-2, dim2=-1).sum(-1) - 1) / 2
    return torch.rad2deg(torch.acos(cosine.clamp(-1, 1)))


def blur(image: Tensor, scale: float, df: float = 8) -> Tensor:
    """An image (*B, H, W), 0 outside, filtered by Student-t noise of `scale` pixels: what the smooth renderer tends to show."""
    height, width = image.shape[-2:]
    reach = math.ceil(float(StudentT(df, scale=scale).reach(1e-4)))
    rows, columns = height + reach, width + reach
    y = torch.fft.fftfreq(rows, 1 / rows, device=image.device).to(image.dtype)
    x = torch.fft.fftfreq(columns, 1 / columns, device=image.device).to(image.dtype)
    # A pixel's share is the density over its area: a grid of points in it, or small scales would be lost
    offsets = (torch.arange(5, device=image.device).to(image.dtype) - 2) / 5
    y, x = (y[:, None] + offsets).reshape(-1), (x[:, None] + offsets).reshape(-1)
    kernel = StudentT(df, scale=scale).density((y[:, None].square() + x.square()).sqrt())
    kernel = kernel.reshape(rows, 5, columns, 5).sum((1, 3))
    kernel = torch.fft.rfft2(kernel / kernel.sum())
    padded = torch.nn.functional.pad(image, (0, reach, 0, reach))
    return torch.fft.irfft2(torch.fft.rfft2(padded) * kernel, s=(rows, columns))[..., :height, :width]


def _renderer(scale: float, two_sided: bool) -> SmoothRenderer:
    # A single full layer has coverage 1, of which BoundedSum(8) shows 0.92; the pictures to match show 1
    coverage, conorm = FilteredCoverage(StudentT(scale=scale)), BoundedSum(32)
    return SmoothRenderer((1, 1), coverage, conorm, shading="vertex", two_sided=two_sided)


class _Pyramid:
    """Pictures (N, H, W, C) at halved sizes: where the noise is wide, small pictures hold all there is to see."""

    def __init__(self, pictures: Tensor):
        self.levels = {1: pictures}

    def set_scale(self, renderer: SmoothRenderer, scale: float) -> Tensor:
        """Set the renderer to noise of `scale` pixels of the full size, at the smallest size that shows it; its pictures."""
        full = self.levels[1]
        factor = 1
        while factor * 2 <= scale and all(n % (factor * 2) == 0 and n // factor >= 16 for n in full.shape[1:3]):
            factor *= 2
        if factor not in self.levels:
            pooled = torch.nn.functional.avg_pool2d(full.movedim(-1, 1), factor)
            self.levels[factor] = pooled.movedim(1, -1)
        pictures = self.levels[factor]
        renderer.size = (pictures.shape[1], pictures.shape[2])
        with torch.no_grad():
            renderer.scale.fill_(scale / factor)  # pyright: ignore[reportCallIssue]
        return pictures


def _target(image: Tensor, scale: float) -> Tensor:
    """(H, W, 1) or premultiplied (H, W, 4), blurred."""
    layers = (
        image[None]
        if image.dim() == 2
        else torch.cat([image[..., :3] * image[..., 3:], image[..., 3:]], -1).movedim(-1, 0)
    )
    return blur(layers, scale).movedim(0, -1)


def _difference(out: Any, target: Tensor) -> Tensor:
    """Mean squared difference per camera (B,)."""
    layers = out.silhouette[..., None]
    if target.shape[-1] == 4:
        layers = torch.cat([out.rgb, layers], -1)
    return (layers - target).square().mean((-3, -2, -1))


def _check_targets(targets: Tensor, cameras: Camera, steps: int) -> None:
    if targets.dim() not in (3, 4) or (targets.dim() == 4 and targets.shape[-1] != 4):
        raise ValueError(
            f"fit_mesh: `targets` must be silhouettes (N, H, W) or RGBA (N, H, W, 4), got {tuple(targets.shape)}."
        )
    if cameras.batch_shape != targets.shape[:1]:
        raise ValueError(
            f"fit_mesh: one camera per picture: {len(targets)} pictures, cameras of batch shape {tuple(cameras.batch_shape)}."
        )
    if steps < 1:
        raise ValueError(f"fit_mesh: `steps` must be at least 1, got {steps}.")


def _draw(count: int, views: int | None, generator: torch.Generator) -> Tensor:
    if views is None or views >= count:
        return torch.arange(count)
    return torch.randperm(count, generator=generator)[:views]


def _decay(share: float) -> float:
    """1 at the start, 0.1 at the end, along a cosine."""
    return 0.1 + 0.9 * (1 + math.cos(math.pi * min(share, 1.0))) / 2


@contextmanager
def _interruptible() -> Iterator[None]:
    """Ctrl-C ends the loop inside, not the program: the fit so far is kept."""
    with suppress(KeyboardInterrupt):
        yield


@contextmanager
def _bar(numbers: Iterable[int], text: str, progress: bool) -> Iterator[Iterable[int]]:
    if not progress:
        yield numbers
        return
    from rich.progress import Progress

    with Progress() as bar:
        yield bar.track(list(numbers), description=text)


__all__ = [
    "CameraFit",
    "MeshFit",
    "MeshWeights",
    "blur",
    "fit_camera",
    "fit_mesh",
    "rotation_error",
    "rotation_matrix",
]
