"""A camera from a picture: from a start, or by a search over all rotations."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from algonet.relax import BoundedSum, StudentT

from ..cameras import Camera
from ..coverage import FilteredCoverage
from ..lights import Light
from ..meshes import Mesh
from ..modules import SmoothRenderer
from .mesh import UNLIT
from .progress import decay, progress_bar, stop_on_interrupt
from .simplify import simplified
from .targets import blur, camera_axes

#: Poses closer than this are one minimum; measured, runs that end in one agree to a tenth of a degree.
SAME_POSE = 5.0
#: No more cameras than this are rendered at once by the search.
AT_ONCE = 512


class Minima(NamedTuple):
    """Distinct poses for one picture, best first: `cameras`, a batch of K, and their `losses` (K,). A second one with a loss
    near the first's tells of a symmetric object, or of a picture that shows too little."""

    cameras: Camera
    losses: Tensor


@dataclass(frozen=True, eq=False)
class CameraFit:
    """The fitted `camera` (or batch), the final loss of each, per step the mean loss and the noise's scale, and for each
    picture that was searched without a start all distinct `minima`."""

    camera: Camera
    losses: Tensor
    history: list[dict[str, float]]
    minima: list[Minima]


@dataclass(frozen=True)
class PoseSearch:
    """How `fit_camera` looks for a pose without a start.

    `rotations` spread evenly over all are fitted for `steps` steps in pictures of about `size` pixels, with a mesh simplified
    to about `faces` faces; the best `keep` that differ are refined in pictures of up to `refine_size` pixels.
    """

    rotations: int = 128
    steps: int = 80
    size: int = 32
    faces: int = 1500
    keep: int = 8
    refine_steps: int = 100
    refine_size: int = 128

    def __post_init__(self):
        for name in ("rotations", "steps", "size", "faces", "keep", "refine_steps", "refine_size"):
            if getattr(self, name) < 1:
                raise ValueError(f"PoseSearch: `{name}` must be at least 1, got {getattr(self, name)!r}.")


def fit_camera(
    mesh: Mesh,
    image: Tensor,
    start: Camera | None = None,
    *,
    fov: float = 40.0,
    learn_fov: bool = False,
    steps: int = 200,
    learning_rate: float = 0.1,
    scales: tuple[float, float] | None = None,
    stages: int = 8,
    search: PoseSearch = PoseSearch(),
    lights: Sequence[Light] = UNLIT,
    move: bool = True,
    two_sided: bool = False,
    progress: bool = False,
) -> CameraFit:
    """The camera from which the mesh looks like `image`: searched among all rotations, or found from the camera `start`.

    `image` is a silhouette (H, W) or colour with alpha (H, W, 4); several, (N, H, W) or (N, H, W, 4), get a camera each.
    Without `start`, the vertical angle of view is taken to be `fov` degrees; see `PoseSearch` for the search, and
    `CameraFit.minima` for what else it found. With `start` (one camera, a batch of them for one picture, or one per
    picture), the camera is turned about the mesh's middle and, with `move`, shifted, for `steps` steps; it first steps to
    where the mesh has the picture's middle and size. `learn_fov` also
    learns the angle of view.

    At each stage both the rendering and the image are blurred by noise of the same scale, which falls geometrically between
    `scales` (in pixels; default: a quarter of the image down to 0.7): far away, the blurred pictures still overlap and
    pull. The mesh is taken to be closed, whose one-sided silhouette is exactly the blurred one; for open ones set
    `two_sided`.

    >>> from algonet.render import icosphere
    >>> fit = fit_camera(icosphere(1), torch.zeros(16, 16), Camera.look_at((0.0, 0.0, 3.0)), steps=2)
    >>> fit.camera.batch_shape, len(fit.history)
    (torch.Size([]), 2)
    """
    pictures, single = _checked_pictures(image, mesh)
    if steps < 1 or stages < 1:
        raise ValueError(f"fit_camera: `steps` and `stages` must be at least 1, got {steps} and {stages}.")
    if not 0 < fov < 180:
        raise ValueError(f"fit_camera: `fov` is the full vertical angle in degrees, in (0, 180), got {fov!r}.")
    common: dict[str, Any] = {"lights": lights, "move": move, "two_sided": two_sided}
    if start is None:
        if not move:
            raise ValueError("fit_camera: without `start`, the camera's place is searched too; leave `move` on.")
        return _search(mesh, pictures, fov, learn_fov, learning_rate, search, common, single, progress)
    start = start.to(mesh.vertices)
    alone = not start.batch_shape
    camera = _batched(start)
    if len(pictures) > 1 and len(camera.matrix) not in (1, len(pictures)):
        raise ValueError(
            f"fit_camera: one start, or one per picture: {len(pictures)} pictures, starts of batch shape "
            f"{tuple(start.batch_shape)}."
        )
    if len(pictures) > 1 and len(camera.matrix) == 1:
        camera = camera[torch.zeros(len(pictures), dtype=torch.long)]
    if move and camera.perspective:
        camera = _matched(mesh, pictures, camera, two_sided)
    height, width = pictures.shape[1:3]
    scales = scales if scales is not None else (max(1.0, max(height, width) / 4), 0.7)
    descent = _Descent(mesh, pictures, camera, learn_fov=learn_fov, **common)
    with stop_on_interrupt(), progress_bar(range(steps), "fitting the camera", progress) as numbers:
        descent.run(numbers, steps, learning_rate, scales, stages)
    found, losses = descent.camera(), descent.losses
    if alone and single:
        found, losses = found[0], losses[0]
    return CameraFit(found, losses, descent.history(), [])


def _search(
    mesh: Mesh, pictures: Tensor, fov: float, learn_fov: bool, rate: float, search: PoseSearch, common: dict[str, Any],
    single: bool, progress: bool,
) -> CameraFit:  # fmt: skip
    """All rotations at a small size, then the best few at a larger one."""
    silhouettes = pictures[..., -1]
    if bool((silhouettes.flatten(1).amax(1) < 0.5).any()):
        raise ValueError(
            "fit_camera: a picture shows nothing (its silhouette is empty); there is no pose to search for."
        )
    coarse, small = simplified(mesh, search.faces), _shrunk(pictures, search.size)
    rotations = even_rotations(search.rotations).to(mesh.vertices)
    each, history = max(1, AT_ONCE // search.rotations), []
    kept: list[Camera] = []
    with progress_bar(range(0, len(pictures), each), "searching the camera", progress) as firsts:
        for first in firsts:
            part = small[first : first + each]
            cameras = _aligned(coarse, part, rotations, fov, common["two_sided"])
            doubled = part.repeat_interleave(len(rotations), 0)
            descent = _Descent(coarse, doubled, cameras, learn_fov=False, **common)
            scales = (max(part.shape[1:3]) / 8, 0.5)
            descent.run(range(search.steps), search.steps, rate, scales, 6)
            history += descent.history()
            losses = descent.losses.reshape(len(part), -1)
            found = descent.camera()
            for i, row in enumerate(losses):
                own = found[slice(i * len(rotations), (i + 1) * len(rotations))]
                kept.append(own[_distinct(own, row)[: search.keep]])
    larger = _shrunk(pictures, search.refine_size)
    counts = [len(camera.matrix) for camera in kept]
    which = torch.repeat_interleave(torch.tensor(counts)).to(mesh.vertices.device)
    together = Camera(torch.cat([c.matrix for c in kept]), torch.cat([c.position for c in kept]), True, kept[0].near)
    descent = _Descent(mesh, larger[which], together, learn_fov=learn_fov, **common)
    scales = (max(1.0, max(larger.shape[1:3]) / 24), 0.7)
    with progress_bar(range(search.refine_steps), "refining the camera", progress) as numbers:
        descent.run(numbers, search.refine_steps, rate / 4, scales, 4)
    history += descent.history()
    found, minima = descent.camera(), []
    for i in range(len(pictures)):
        own = (which == i).nonzero()[:, 0]
        order = _distinct(found[own], descent.losses[own])
        minima.append(Minima(found[own[order]], descent.losses[own[order]]))
    best = Camera(
        torch.stack([m.cameras.matrix[0] for m in minima]), torch.stack([m.cameras.position[0] for m in minima])
    )
    losses = torch.stack([m.losses[0] for m in minima])
    return CameraFit(best[0] if single else best, losses[0] if single else losses, history, minima)


class _Descent:
    """Cameras (B,) moved by Adam until the mesh looks like one picture, or like one each, (1 or B, H, W, C)."""

    def __init__(
        self, mesh: Mesh, pictures: Tensor, camera: Camera, *, lights: Sequence[Light], move: bool, two_sided: bool,
        learn_fov: bool,
    ):  # fmt: skip
        self.mesh, self.pictures, self.lights = mesh, pictures, lights
        coverage, conorm = FilteredCoverage(StudentT()), BoundedSum(32)
        self.renderer = SmoothRenderer((1, 1), coverage, conorm, shading="vertex", two_sided=two_sided)
        self.renderer.to(mesh.vertices.device)
        self.pose = _Pose(camera, (mesh.vertices.amin(-2) + mesh.vertices.amax(-2)).detach() / 2, move, learn_fov)
        self.losses = torch.zeros(len(camera.matrix))
        self.levels: list[tuple[Tensor, float]] = []

    def run(self, numbers: Any, steps: int, rate: float, scales: tuple[float, float], stages: int) -> None:
        """Adam over the steps `numbers`, the noise's scale falling in `stages`."""
        groups = self.pose.groups(rate)
        optimizer = torch.optim.Adam(groups, lr=rate)
        self.stage_scales = [scales[0] * (scales[1] / scales[0]) ** (i / max(1, stages - 1)) for i in range(stages)]
        current, target = -1, self.pictures
        for step in numbers:
            stage = min(stages - 1, step * stages // steps)
            if stage != current:
                current, target = stage, self._set_scale(self.stage_scales[stage])
            for group in optimizer.param_groups:
                group["lr"] = group["base"] * decay(step / steps)
            out = self.renderer(self.mesh, self.pose(), self.lights)
            layers = out.silhouette[..., None]
            if target.shape[-1] == 4:
                layers = torch.cat([out.rgb, layers], -1)
            losses = (layers - target).square().mean((-3, -2, -1))
            optimizer.zero_grad()
            losses.sum().backward()
            optimizer.step()
            self.losses = losses.detach()
            self.levels.append((self.losses.mean(), self.stage_scales[stage]))

    def _set_scale(self, scale: float) -> Tensor:
        """The pictures blurred for this scale, at the smallest size that shows it, to which the renderer is set."""
        height, width = self.pictures.shape[1:3]
        factor = 1
        while factor * 2 <= scale and all(n % (factor * 2) == 0 and n // factor >= 16 for n in (height, width)):
            factor *= 2
        blurred = blur(self.pictures.movedim(-1, 1), scale)
        blurred = torch.nn.functional.avg_pool2d(blurred, factor) if factor > 1 else blurred
        self.renderer.size = (height // factor, width // factor)
        with torch.no_grad():
            self.renderer.scale.fill_(scale / factor)  # pyright: ignore[reportCallIssue]
        return blurred.movedim(1, -1)

    def camera(self) -> Camera:
        with torch.no_grad():
            return self.pose()

    def history(self) -> list[dict[str, float]]:
        losses = torch.stack([loss for loss, _ in self.levels]).tolist() if self.levels else []
        return [{"loss": loss, "scale": scale} for loss, (_, scale) in zip(losses, self.levels, strict=True)]


class _Pose:
    """Cameras moved rigidly about a centre: a quaternion and a shift each, and the logarithm of a focal length."""

    def __init__(self, camera: Camera, centre: Tensor, move: bool, learn_fov: bool):
        self.base, self.centre = camera, centre
        count = len(camera.matrix)
        self.turn = camera.matrix.new_zeros(count, 3, requires_grad=True)
        self.shift = camera.matrix.new_zeros(count, 3, requires_grad=move)
        self.zoom = camera.matrix.new_zeros(count, 1, requires_grad=learn_fov)
        self.distance = (camera.position - centre).norm(dim=-1, keepdim=True)
        self.axes = camera_axes(camera)

    def groups(self, rate: float) -> list[dict[str, Any]]:
        groups: list[dict[str, Any]] = [{"params": [self.turn], "base": rate}]
        # Slower than turning: both are in shares of the distance between camera and mesh
        groups += [{"params": [self.shift], "base": rate / 6}] if self.shift.requires_grad else []
        return groups + ([{"params": [self.zoom], "base": rate / 5}] if self.zoom.requires_grad else [])

    def __call__(self) -> Camera:
        rotation = rotation_matrix(self.turn)
        away = self.shift
        if self.zoom.requires_grad or bool(self.zoom.any()):
            # A longer lens steps back as far as keeps the size: what is left for the zoom is the perspective
            back = torch.nn.functional.pad(1 - self.zoom.exp(), (2, 0))
            away = away + back
        moved = self.centre + self.distance * (away[..., None, :] @ self.axes)[..., 0, :]
        offset = moved - (rotation @ self.centre[..., None])[..., 0]
        top = torch.cat([rotation, offset[..., None]], -1)
        last = top.new_tensor([0.0, 0.0, 0.0, 1.0]).expand(len(top), 1, 4)
        rigid = torch.cat([top, last], -2)
        eye = (rotation.mT @ (self.base.position - offset)[..., None])[..., 0]
        return Camera(self._lens() @ rigid, eye, self.base.perspective, self.base.near)

    def _lens(self) -> Tensor:
        """The base cameras' matrices with their focal lengths changed, the principal point as it was."""
        if not self.zoom.requires_grad:
            return self.base.matrix
        x, y, depth, last = self.base.matrix.unbind(-2)
        factor = self.zoom.exp()
        rows = []
        for row in (x, y):
            centre = (row[..., :3] * depth[..., :3]).sum(-1, keepdim=True) * depth
            rows.append(factor * (row - centre) + centre)
        return torch.stack([*rows, depth, last], -2)


def rotation_matrix(turn: Tensor) -> Tensor:
    """Rotations (*B, 3, 3) from (*B, 3): the quaternion (1, turn), normalised. Smooth, and the identity at 0.

    >>> rotation_matrix(torch.zeros(3))
    tensor([[1., 0., 0.],
            [0., 1., 0.],
            [0., 0., 1.]])
    """
    return _from_quaternion(torch.cat([torch.ones_like(turn[..., :1]), turn], -1))


def _from_quaternion(q: Tensor) -> Tensor:
    """Rotations from quaternions (*B, 4), the real part first, of any length."""
    w, x, y, z = q.unbind(-1)
    n = 2 / q.square().sum(-1)
    rows = [
        1 - n * (y * y + z * z), n * (x * y - w * z), n * (x * z + w * y),
        n * (x * y + w * z), 1 - n * (x * x + z * z), n * (y * z - w * x),
        n * (x * z - w * y), n * (y * z + w * x), 1 - n * (x * x + y * y),
    ]  # fmt: skip
    return torch.stack(rows, -1).reshape(*q.shape[:-1], 3, 3)


def even_rotations(count: int) -> Tensor:
    """`count` rotations (count, 3, 3) spread evenly over all: super-Fibonacci spirals (Alexa, CVPR 2022).

    >>> torch.linalg.det(even_rotations(3))
    tensor([1.0000, 1.0000, 1.0000])
    """
    s = torch.arange(count, dtype=torch.float64) + 0.5
    t, angle = s / count, 2 * math.pi * s
    # The spiral's two frequencies: sqrt(2), and the root of x^4 = x + 4 near 1.53
    first, second = angle / math.sqrt(2), angle / 1.533751168755204288
    a, b = t.sqrt(), (1 - t).sqrt()
    quaternions = torch.stack([a * first.sin(), a * first.cos(), b * second.sin(), b * second.cos()], -1)
    return _from_quaternion(quaternions).to(torch.get_default_dtype())


def rotation_error(a: Camera, b: Camera) -> Tensor:
    """The angle, in degrees, between the directions of view and roll of two cameras (or batches)."""
    cosine = ((camera_axes(a).double() @ camera_axes(b).double().mT).diagonal(dim1=-2, dim2=-1).sum(-1) - 1) / 2
    return torch.rad2deg(torch.acos(cosine.clamp(-1, 1)))


def _aligned(mesh: Mesh, pictures: Tensor, rotations: Tensor, fov: float, two_sided: bool) -> Camera:
    """For each picture and rotation (P * R cameras) one whose silhouette has the picture's middle and size."""
    count = len(pictures) * len(rotations)
    size = (int(pictures.shape[1]), int(pictures.shape[2]))
    centre = (mesh.vertices.amin(-2) + mesh.vertices.amax(-2)) / 2
    radius = float((mesh.vertices - centre).norm(dim=-1).max())
    focal = 1 / math.tan(math.radians(fov) / 2)
    axes = rotations.repeat(len(pictures), 1, 1)
    place = axes.new_zeros(count, 3)
    place[:, 2] = 1.3 * radius * math.hypot(1, focal)
    wanted = _moments(pictures[..., -1], size).repeat_interleave(len(rotations), 0)
    renderer = SmoothRenderer(size, shading="vertex", two_sided=two_sided).to(mesh.vertices.device)
    camera = _camera(axes, place, centre, focal)
    with torch.no_grad():
        for _ in range(3):
            seen = _moments(renderer(mesh, camera, UNLIT).silhouette, size)
            grown = (seen[:, 2:] / wanted[:, 2:].clamp_min(1e-6)).clamp(0.3, 3.0)
            depth = (place[:, 2:] * grown).clamp_min(1.05 * radius)
            # The camera moves against the way the picture is to move
            across = place[:, :2] / place[:, 2:] - (wanted[:, :2] - seen[:, :2]) / focal
            place = torch.cat([across * depth, depth], -1)
            camera = _camera(axes, place, centre, focal)
    return camera


def _matched(mesh: Mesh, pictures: Tensor, camera: Camera, two_sided: bool) -> Camera:
    """Cameras (B,) shifted until the mesh's silhouette has the middle and size that the picture's has.

    From far off, this is what gradients would spend most steps on. Pictures that are empty, or cut off by the frame, tell
    neither: their cameras stay.
    """
    silhouettes = pictures[..., -1]
    size = (int(silhouettes.shape[1]), int(silhouettes.shape[2]))
    edge = torch.cat([silhouettes[:, 0], silhouettes[:, -1], silhouettes[:, :, 0], silhouettes[:, :, -1]], 1)
    usable = (silhouettes.sum((-2, -1)) > 4) & (edge.amax(1) < 0.5)
    centre = (mesh.vertices.amin(-2) + mesh.vertices.amax(-2)).detach() / 2
    radius = (mesh.vertices.detach() - centre).norm(dim=-1).max()
    axes, wanted = camera_axes(camera), _moments(silhouettes, size)
    depth_row = camera.matrix[:, 2, :3]
    up = camera.matrix[:, 1, :3]
    focal = (up - (up * depth_row).sum(-1, keepdim=True) * depth_row).norm(dim=-1, keepdim=True)
    renderer = SmoothRenderer(size, shading="vertex", two_sided=two_sided).to(mesh.vertices.device)
    with torch.no_grad():
        for _ in range(3):
            seen = _moments(renderer(mesh, camera, UNLIT).silhouette, size)
            place = (axes @ (camera.position - centre)[..., None])[..., 0]
            grown = (seen[:, 2:] / wanted[:, 2:]).clamp(0.3, 3.0)
            depth = torch.maximum(place[:, 2:] * grown, 1.05 * radius)
            across = place[:, :2] / place[:, 2:] - (wanted[:, :2] - seen[:, :2]) / focal
            way = torch.cat([across * depth, depth], -1) - place
            # A camera that sees nothing of the mesh learns nothing from it
            fine = (usable & (seen[:, 2] * size[0] > 1) & (place[:, 2] > 0))[:, None]
            camera = _shifted(camera, torch.where(fine, (way[:, None] @ axes)[:, 0], 0.0))
    return camera


def _shifted(camera: Camera, way: Tensor) -> Camera:
    """Cameras moved by `way` (B, 3) in the world, looking as before."""
    column = camera.matrix[:, :, 3] - (camera.matrix[:, :, :3] @ way[..., None])[..., 0]
    matrix = torch.cat([camera.matrix[:, :, :3], column[..., None]], -1)
    return Camera(matrix, camera.position + way, camera.perspective, camera.near)


def _camera(axes: Tensor, place: Tensor, centre: Tensor, focal: float) -> Camera:
    """Cameras with these axes (B, 3, 3) at `place` (B, 3), given along them, from the centre."""
    eye = centre + (place[:, None] @ axes)[:, 0]
    view = torch.cat([axes, -(axes @ eye[..., None])], -1)
    last = view.new_tensor([0.0, 0.0, 0.0, 1.0]).expand(len(view), 4)
    return Camera(torch.stack([focal * view[:, 0], focal * view[:, 1], -view[:, 2], last], 1), eye)


def _moments(silhouettes: Tensor, size: tuple[int, int]) -> Tensor:
    """(B, 3): the middle in NDC (x right, y up) and the root of the area of each silhouette."""
    height, width = size
    y = (1 - (2 * torch.arange(height) + 1) / height).to(silhouettes)
    x = ((2 * torch.arange(width) + 1 - width) / height).to(silhouettes)
    total = silhouettes.sum((-2, -1)).clamp_min(1e-3)
    middle_x = (silhouettes.sum(-2) * x).sum(-1) / total
    middle_y = (silhouettes.sum(-1) * y).sum(-1) / total
    return torch.stack([middle_x, middle_y, total.sqrt() / height], -1)


def _distinct(cameras: Camera, losses: Tensor) -> Tensor:
    """Which cameras to keep, best first: each at least `SAME_POSE` degrees from every better one."""
    order = losses.argsort()
    axes = camera_axes(cameras)[order].double()
    trace = torch.einsum("aij,bij->ab", axes, axes)
    apart = (torch.rad2deg(torch.acos(((trace - 1) / 2).clamp(-1, 1))) > SAME_POSE).cpu()
    chosen: list[int] = []
    for i in range(len(order)):
        if all(bool(apart[i, j]) for j in chosen):
            chosen.append(i)
    return order[torch.tensor(chosen, device=order.device)]


def _shrunk(pictures: Tensor, size: int) -> Tensor:
    """Pictures (N, H, W, C) averaged down until the longer side is about `size` and even, never enlarged."""
    height, width = pictures.shape[1:3]
    share = min(1.0, size / max(height, width))
    if share == 1.0:
        return pictures
    rows, columns = (max(2, 2 * round(n * share / 2)) for n in (height, width))
    return torch.nn.functional.interpolate(pictures.movedim(-1, 1), (rows, columns), mode="area").movedim(1, -1)


def _batched(camera: Camera) -> Camera:
    return (
        camera
        if camera.batch_shape
        else Camera(camera.matrix[None], camera.position[None], camera.perspective, camera.near)
    )


def _checked_pictures(image: Tensor, mesh: Mesh) -> tuple[Tensor, bool]:
    """Pictures (N, H, W, 1) or premultiplied (N, H, W, 4), and whether there was one alone."""
    wanted = "a silhouette (H, W), RGBA (H, W, 4), or several of either, (N, H, W) or (N, H, W, 4)"
    if not isinstance(image, Tensor) or not image.is_floating_point():
        got = image.dtype if isinstance(image, Tensor) else type(image).__name__
        raise TypeError(f"fit_camera: `image` must be a floating tensor, {wanted}, got {got}.")
    if (
        image.dim() not in (2, 3, 4)
        or 0 in image.shape
        or image.shape[-1] == 3
        or (image.dim() == 4 and image.shape[-1] != 4)
    ):
        raise ValueError(f"fit_camera: `image` must be {wanted}, got {tuple(image.shape)}.")
    image = image.to(mesh.vertices)
    if image.dim() == 2:
        return image[None, ..., None], True
    if image.dim() == 3 and image.shape[-1] != 4:
        return image[..., None], False
    single = image.dim() == 3
    image = image[None] if single else image
    return torch.cat([image[..., :3] * image[..., 3:], image[..., 3:]], -1), single
