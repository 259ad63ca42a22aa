"""A camera from a picture: from a start, or by a search over all rotations."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from algonet.core.memory import check_memory

from ..cameras import Camera
from ..coverage import Coverage, FilteredCoverage
from ..lights import Light
from ..meshes import Mesh
from .alignment import align_rotations, match_silhouettes
from .least_squares import AT_ONCE, LeastSquares
from .mesh import UNLIT
from .progress import progress_bar, stop_on_interrupt
from .rotations import even_rotations
from .sides import Sides
from .simplify import simplified
from .targets import camera_axes

#: Poses closer than this are one minimum; measured, runs that end in one agree to a tenth of a degree.
SAME_POSE = 5.0


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
    steps: int = 12
    size: int = 32
    faces: int = 1500
    keep: int = 8
    refine_steps: int = 12
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
    steps: int = 24,
    scales: tuple[float, float] | None = None,
    stages: int = 8,
    search: PoseSearch = PoseSearch(),
    lights: Sequence[Light] = UNLIT,
    move: bool = True,
    two_sided: bool | None = None,
    coverage: Coverage = FilteredCoverage(),
    progress: bool = False,
) -> CameraFit:
    """The camera from which the mesh looks like `image`: searched among all rotations, or found from the camera `start`.

    `image` is a silhouette (H, W) or colour with alpha (H, W, 4); several, (N, H, W) or (N, H, W, 4), get a camera each.
    Without `start`, the vertical angle of view is taken to be `fov` degrees; see `PoseSearch` for the search, and
    `CameraFit.minima` for what else it found. With `start` (one camera, a batch of them for one picture, or one per
    picture), the camera is turned about the mesh's middle and, with `move`, shifted, by `steps` damped Gauss-Newton steps; it
    first steps to where the mesh has the picture's middle and size. `learn_fov` also learns the angle of view.

    At each stage both the rendering and the image are blurred by noise of the same scale, which falls geometrically between
    `scales` (in pixels; default: a quarter of the image down to 0.7): far away, the blurred pictures still overlap and
    pull. Open meshes are seen from both sides, at twice the cost, and so are those for which `two_sided` says so. Any
    `coverage` will do; its own softness does not count.

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
    open = not mesh.is_closed() if two_sided is None else two_sided
    common: dict[str, Any] = {"lights": lights, "move": move, "coverage": coverage}
    if start is None:
        if not move:
            raise ValueError("fit_camera: without `start`, the camera's place is searched too; leave `move` on.")
        return _search(mesh, open, pictures, fov, learn_fov, search, common, single, progress)
    sides, start = Sides(mesh, open), start.to(mesh.vertices)
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
        camera = match_silhouettes(sides, pictures, camera)
    height, width = pictures.shape[1:3]
    scales = scales if scales is not None else (max(1.0, max(height, width) / 4), 0.7)
    descent = LeastSquares(sides, pictures, camera, learn_fov=learn_fov, **common)
    with stop_on_interrupt(), progress_bar(range(steps), "fitting the camera", progress) as numbers:
        descent.run(numbers, steps, scales, stages)
    found, losses = descent.camera(), descent.losses
    if alone and single:
        found, losses = found[0], losses[0]
    return CameraFit(found, losses, descent.history(), [])


def _search(
    mesh: Mesh, open: bool, pictures: Tensor, fov: float, learn_fov: bool, search: PoseSearch,
    common: dict[str, Any], single: bool, progress: bool,
) -> CameraFit:  # fmt: skip
    """All rotations at a small size, then the best few at a larger one."""
    # Per rotation its pose with gradient and moments, and the camera; pictures are rendered a few at a time
    needed = 400 * search.rotations
    check_memory("fit_camera", f"a search from {search.rotations} rotations", needed, mesh.vertices.device)
    silhouettes = pictures[..., -1]
    if bool((silhouettes.flatten(1).amax(1) < 0.5).any()):
        raise ValueError(
            "fit_camera: a picture shows nothing (its silhouette is empty); there is no pose to search for."
        )
    coarse, small = Sides(simplified(mesh, search.faces), open), _shrunk(pictures, search.size)
    rotations = even_rotations(search.rotations).to(mesh.vertices)
    each, history = max(1, AT_ONCE // search.rotations), []
    kept: list[Camera] = []
    with progress_bar(range(0, len(pictures), each), "searching the camera", progress) as firsts:
        for first in firsts:
            part = small[first : first + each]
            cameras = align_rotations(coarse, part, rotations, fov)
            doubled = part.repeat_interleave(len(rotations), 0)
            descent = LeastSquares(coarse, doubled, cameras, learn_fov=False, **common)
            scales = (max(part.shape[1:3]) / 8, 0.5)
            descent.run(range(search.steps), search.steps, scales, 4)
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
    descent = LeastSquares(Sides(mesh, open), larger[which], together, learn_fov=learn_fov, **common)
    scales = (max(1.0, max(larger.shape[1:3]) / 24), 0.7)
    with progress_bar(range(search.refine_steps), "refining the camera", progress) as numbers:
        descent.run(numbers, search.refine_steps, scales, 4)
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
        raise TypeError(
            f"fit_camera: `image` must be a floating tensor, {wanted}, got {got}; call it as fit_camera(mesh, image)."
        )
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
