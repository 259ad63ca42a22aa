"""A camera from a picture: from a start, or by a search over all rotations."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor

from algonet.core.checks import check_integer
from algonet.core.memory import check_memory
from algonet.core.tracing import outside_autocast
from algonet.render import Camera, Coverage, Mesh
from algonet.render.cameras import DEFAULT_FOV, check_fov
from algonet.render.coverage import DEFAULT_COVERAGE
from algonet.render.lights import Light
from algonet.render.meshes import check_mesh_given

from .alignment import Move, even_rotations, match_silhouettes, rotation_angle, see_whole, turn_around, variations
from .least_squares import AT_ONCE, LeastSquares, Poses, joined
from .mesh import UNLIT
from .progress import geometric, progress_of
from .simplify import Sides
from .targets import shrunk

#: So many of each picture's best poses are tried again in variations.
VARIED = 4
#: A descent from a start has one try, and keeps more faces in shrunken pictures than a search: with 512 of its 6,320, a
#: teapot's was lost 5 to 12 times more often in 100.
DESCENT_FACES = 8192


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
    history: list[dict[str, float]] = field(repr=False)
    minima: list[Minima] = field(repr=False)


@dataclass(frozen=True)
class PoseSearch:
    """How `fit_camera` looks for a pose among many.

    `rotations` spread evenly over all are fitted for `steps` steps in pictures of about `size` pixels, with a mesh simplified
    to about `faces` faces; after half of the steps the best quarter of those that differ goes on. The best four are tried again
    turned by 10 and 25 degrees, and mirrored. The best `keep` are refined in pictures of up to `refine_size` pixels, with at
    most about `refine_faces` faces. With a start, it is the start itself and those of the rotations that turn it by less than
    `around` degrees. On a GPU, `fit_camera` searches by `PoseSearch(rotations=512, keep=16)` unless told otherwise, which takes
    hardly longer there; on a CPU it takes four times as long.
    """

    rotations: int = 128
    around: float = 90.0
    steps: int = 12
    size: int = 32
    faces: int = 1500
    keep: int = 8
    refine_steps: int = 12
    refine_size: int = 128
    refine_faces: int = 20_000

    def __post_init__(self):
        counts = ("rotations", "steps", "size", "faces", "keep", "refine_steps", "refine_size", "refine_faces")
        for name in counts:
            check_integer("PoseSearch", name, getattr(self, name), 1)
        if not 0 <= self.around <= 180:
            raise ValueError(f"PoseSearch: `around` is an angle in degrees, in [0, 180], got {self.around!r}.")


#: How a GPU searches unless told otherwise. Measured on an H200 without variations, by silhouettes: a teapot's pose in 0.30 s
#: instead of 0.27, 38 of 40 instead of 35; a cow's in 0.18 s instead of 0.12, 40 instead of 35.
THOROUGH = PoseSearch(rotations=512, keep=16)


@outside_autocast
def fit_camera(
    mesh: Mesh,
    image: Tensor,
    start: Camera | None = None,
    *,
    fov: float = DEFAULT_FOV,
    learn_fov: bool = False,
    steps: int = 24,
    scales: tuple[float, float] | None = None,
    search: PoseSearch | None = None,
    lights: Sequence[Light] = UNLIT,
    move: Move = True,
    two_sided: bool | None = None,
    coverage: Coverage = DEFAULT_COVERAGE,
    progress: bool = False,
) -> CameraFit:
    """The camera from which the mesh looks like `image`: searched among all rotations, or found from the camera `start`.

    `image` is a silhouette (H, W) or colour with alpha (H, W, 4); several, (N, H, W, 1) or (N, H, W, 4), get a camera each.
    (N, H, W) are silhouettes too, unless N is 3 or 4: that is the shape of one picture with its channels first.
    Without `start`, the vertical angle of view is taken to be `fov` degrees, by default that of `Camera.look_at` (20 degrees
    off turn a pose by some 7); see `PoseSearch` for the search, and `CameraFit.minima` for what else it found. With `start`
    (one camera, a batch of them for one picture, or one per picture), the camera is turned about the mesh's middle and, with
    `move`, shifted, by `steps` damped Gauss-Newton steps; it first steps to where the mesh has the picture's middle and size.
    A start that may be far off takes a `search` around it (`search=PoseSearch(around=75.0)`), from whose best pose the steps
    go on. `learn_fov` also learns the angle of view. `move="distance"` moves the camera nearer and farther only: for pictures
    known to be centred on the mesh, as of turntables. A step aside and a turn look nearly alike, which costs degrees in small
    pictures.

    At each of eight stages both the rendering and the image are blurred by noise of the same scale, which falls
    geometrically between `scales` (in pixels; default: a quarter of the image, after a search a 24th, down to 0.7): far
    away, the blurred pictures still overlap and pull. While it is wide, smaller pictures are rendered, of a mesh simplified
    to no more faces than they have pixels. Open meshes are seen from both sides, and so are those for which `two_sided` says
    so. Any `coverage` will do; its own softness does not count.

    >>> from algonet.render import icosphere
    >>> fit = fit_camera(icosphere(1), torch.zeros(16, 16), Camera.look_at((0.0, 0.0, 3.0)), steps=2)
    >>> fit.camera.batch_shape, len(fit.history)
    (torch.Size([]), 2)
    """
    pictures, single = _checked_pictures(image, mesh)
    check_integer("fit_camera", "steps", steps, 1)
    check_fov("fit_camera: `fov`", fov)
    if move not in (True, False, "distance"):
        raise ValueError(f"fit_camera: `move` must be True, False or 'distance', got {move!r}.")
    sides = Sides(mesh, not mesh.is_closed() if two_sided is None else two_sided)
    common: dict[str, Any] = {"lights": lights, "move": move, "coverage": coverage, "learn_fov": learn_fov}
    if start is None:
        if not move:
            raise ValueError("fit_camera: without `start`, the camera's place is searched too; leave `move` on.")
        search = search or (PoseSearch() if mesh.vertices.device.type == "cpu" else THOROUGH)
        minima, history = _search(sides, pictures, None, fov, search, common, progress)
        found = joined([own[:1] for own in minima])
    else:
        start = start.to(mesh.vertices)
        single &= not start.batch_shape
        camera = Camera(start.matrix.reshape(-1, 4, 4), start.position.reshape(-1, 3), start.perspective, start.near)
        given, count = len(camera.matrix), max(len(camera.matrix), len(pictures))
        if not {given, len(pictures)} <= {1, count}:
            raise ValueError(
                f"fit_camera: one start, or one per picture: {len(pictures)} pictures, starts of batch shape "
                f"{tuple(start.batch_shape)}."
            )
        rows = torch.arange(count, device=pictures.device)
        camera, pictures = camera[rows % given], pictures[rows % len(pictures)]
        minima, history, widest = [], [], max(pictures.shape[1:3]) / 4
        if search is not None:
            minima, history = _search(sides, pictures, camera, fov, search, common, progress)
            camera, widest = joined([own[:1] for own in minima]).cameras, widest / 6
        else:
            camera = match_silhouettes(sides, pictures, camera, move)
        begun = Poses(camera, rows, pictures.new_zeros(count))
        descent = LeastSquares(sides, pictures, begun, least_faces=DESCENT_FACES, **common)
        scales = (max(1.0, widest), 0.7) if scales is None else scales
        with suppress(KeyboardInterrupt), progress_of(steps, "fitting the camera", progress) as advance:
            descent.run(scales, 8, steps, advance)
        found = descent.poses()
        history += descent.history()
    camera, losses = (found.cameras[0], found.losses[0]) if single else (found.cameras, found.losses)
    return CameraFit(camera, losses, history, [Minima(own.cameras, own.losses) for own in minima])


def _search(
    sides: Sides,
    pictures: Tensor,
    start: Camera | None,
    fov: float,
    search: PoseSearch,
    common: dict[str, Any],
    progress: bool,
) -> tuple[list[Poses], list[dict[str, float]]]:
    """Many rotations tried at a small size, then the best few at a larger one: each picture's poses, and the history.

    The rotations are spread over all; with starts, one per picture, they are none and those that are small enough, and turn
    its start.
    """
    # Per rotation its pose with gradient and moments, and the camera; pictures are rendered a few at a time
    check_memory("fit_camera", f"a search from {search.rotations} rotations", 400 * search.rotations, pictures.device)
    turns, around = even_rotations(search.rotations), 180.0
    if start is not None:
        near = turns[rotation_angle(turns.diagonal(dim1=-2, dim2=-1).sum(-1)) < search.around]
        turns, around = torch.cat([torch.eye(3)[None], near]), search.around
    elif bool((pictures[..., -1].flatten(1).amax(1) < 0.5).any()):
        raise ValueError(
            "fit_camera: a picture shows nothing (its silhouette is empty); there is no pose to search for."
        )
    turns, count = turns.to(pictures), len(turns)
    coarse, fine = (sides.at_most(faces) for faces in (search.faces, search.refine_faces))
    each, found, history = max(1, AT_ONCE // count), [], []
    groups, half, varied_steps = range(0, len(pictures), each), search.steps // 2, max(1, search.steps // 2)
    total = len(groups) * (search.steps + varied_steps + search.refine_steps)
    with progress_of(total, "searching the camera", progress) as advance:

        def descend(
            sides: Sides,
            pictures: Tensor,
            start: Poses,
            scales: tuple[float, float],
            stages: int,
            steps: int,
            keep: int,
        ) -> Poses:
            descent = LeastSquares(sides, pictures, start, **common)
            descent.run(scales, stages, steps, advance)
            history.extend(descent.history())
            return descent.poses().best(keep)

        for first in groups:
            group = slice(first, first + each)
            small, larger = (shrunk(pictures[group], size) for size in (search.size, search.refine_size))
            which = torch.arange(len(small), device=pictures.device).repeat_interleave(count)
            begun = see_whole(coarse, fov, len(small)) if start is None else start[group]
            camera = turn_around(begun, turns, coarse.middle)
            camera = match_silhouettes(coarse, small[which], camera, common["move"], cut_off=start is None)
            poses, side = Poses(camera, which, small.new_zeros(len(which))), max(small.shape[1:3])
            a, b, c, d = (geometric((side / 8, 0.5), i / 3) for i in range(4))
            # After half of the steps only the best go on
            if half:
                poses = descend(coarse, small, poses, (a, b), 2, half, max(search.keep, count // 4))
            poses = descend(coarse, small, poses, (c, d), 2, search.steps - half, search.keep)
            best = poses.best(VARIED)
            others = variations(best.cameras, coarse.front, around)
            if others.shape[1]:
                which = best.which.repeat_interleave(others.shape[1])
                varied = Poses(turn_around(best.cameras, others, coarse.middle), which, small.new_zeros(len(which)))
                varied = descend(coarse, small, varied, (side / 16, 0.5), 2, varied_steps, search.keep)
                poses = joined([poses, varied]).best(search.keep)
            scales = max(1.0, max(larger.shape[1:3]) / 24), 0.7
            found += descend(fine, larger, poses, scales, 4, search.refine_steps, search.keep).of_pictures()
    return found, history


def _checked_pictures(image: Tensor, mesh: Mesh) -> tuple[Tensor, bool]:
    """Pictures (N, H, W, 1) or premultiplied (N, H, W, 4), and whether there was one alone."""
    wanted = "a silhouette (H, W), RGBA (H, W, 4), or several of either, (N, H, W, 1) or (N, H, W, 4)"
    if not isinstance(image, Tensor) or not image.is_floating_point():
        got = image.dtype if isinstance(image, Tensor) else type(image).__name__
        raise TypeError(
            f"fit_camera: `image` must be a floating tensor, {wanted}, got {got}; call it as fit_camera(mesh, image)."
        )
    check_mesh_given("fit_camera", mesh)
    layers = image.dim() in (3, 4) and image.shape[-1] in (1, 4)
    channels_first = image.dim() > 2 and image.shape[-3] in (3, 4) and not layers
    plain = image.dim() in (2, 3) and image.shape[-1] != 3
    if 0 in image.shape or channels_first or not (layers or plain):
        hint = "; channels come last: image.movedim(-3, -1), with alpha" if channels_first else ""
        hint += ", or image[..., None] for silhouettes" if channels_first and image.dim() == 3 else ""
        raise ValueError(f"fit_camera: `image` must be {wanted}, got {tuple(image.shape)}{hint}.")
    if image.device.type == "cpu" and not bool(torch.isfinite(image).all()):
        raise ValueError("fit_camera: `image` holds values that are not finite; look at the step that made it.")
    image = image.to(mesh.vertices)
    single = image.dim() == (3 if layers else 2)
    image = image if layers else image[..., None]
    image = image[None] if single else image
    if image.shape[-1] == 1:
        return image, single
    return torch.cat([image[..., :3] * image[..., 3:], image[..., 3:]], -1), single
