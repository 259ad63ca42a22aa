"""The visual hull: what silhouettes leave of a block, meshed. A start that has the holes that they show."""

from __future__ import annotations

import itertools
import math

import torch
from torch import Tensor
from torch.nn.functional import max_pool3d, normalize, pad

from algonet.core.tracing import outside_autocast
from algonet.render import Camera, FilteredCoverage, Mesh, render_hard
from algonet.render.vectors import face_areas

from .targets import Targets, blur, border, looked_up

#: Points along the longest side of the grid, at most, and of the first, coarser one that finds where the object is.
SIDE, FIRST_SIDE = 80, 40
#: Pixels between points, at least: finer grids show no more, and make more faces.
SPACING = 2.5
#: Silhouettes are blurred by noise of so many pixels: the hull's level set is then as smooth as the pictures allow.
BLUR = 1.0
#: A part with fewer faces than this share of the largest one's is noise of the silhouettes, or a phantom.
LEAST_PART = 0.02
#: Cameras whose lines of sight differ by less, in degrees, leave a hull that is open along them, cut off by the grid alone.
LEAST_ANGLE = 20.0
#: A hull that fills less of a silhouette than this contradicts it.
LEAST_FILLED = 0.75
EMPTY = "the views contradict each other: no place is inside all silhouettes. The fit began with a ball"
#: A tetrahedron's crossing with the level set stays this far, as a share of the edge, from the grid's points.
APART = 0.05


@outside_autocast
@torch.no_grad()
def visual_hull(targets: Targets) -> tuple[Mesh | None, str]:
    """The hull of the targets' silhouettes, or None; and what is wrong with them, "" if nothing is.

    value(p) = min over views of the silhouette, blurred by a pixel, where the camera sees p. The hull is {value >= 1/2} on a
    grid around the object, of at most 80 points a side. Beyond the frame a silhouette goes on as it is at the frame's border,
    and masked pixels may be anything.
    """
    alpha = targets.alpha
    if alpha is None:
        return None, "the pictures have no silhouettes; the fit began with a ball"
    if targets.masks is None and float((border(alpha) > 0.5).to(alpha.dtype).mean()) > 0.5:
        return (
            None,
            "the object covers most of the pictures' borders: are the silhouettes inverted? The fit began with a ball",
        )
    axes = normalize(targets.cameras.matrix[:, 2, :3], dim=-1)
    # Opposite cameras see the same outline
    if float((axes @ axes.mT).abs().min()) > math.cos(math.radians(LEAST_ANGLE)):
        seen = "one view" if len(targets) == 1 else "views along nearly one line"
        return None, f"{seen}: the depth of the shape is a guess, and the fit began with a ball"
    views = _blurred(targets, alpha)
    middle, radius = viewed_place(targets)
    height, width = targets.size
    block = radius * max(1.0, width / height)
    cell = 2 * block / (FIRST_SIDE - 1)
    coarse = _grid(middle - block, cell, [FIRST_SIDE] * 3)
    found = coarse[_least(views, targets.cameras, coarse) > 0.05]
    if not len(found):
        return None, EMPTY
    low, high = found.amin(0) - cell, found.amax(0) + cell
    step = max(float((high - low).max()) / (SIDE - 1), SPACING * 2 * radius / height)
    points = _grid(low, step, [math.ceil(extent / step) + 1 for extent in (high - low).tolist()])
    values = _least(views, targets.cameras, points)
    if not bool((values >= 0.5).any()):
        return None, EMPTY
    mesh = _largest_parts(level_set(values, low, step))
    shown = render_hard(mesh.vertices, mesh.faces, mesh.vertices, targets.cameras, size=targets.size).silhouette
    wanted = views[:, 0] >= 0.5
    if targets.masks is not None:
        wanted &= targets.masks > 0
    missing = ((1 - shown) * wanted).sum((1, 2)) / wanted.sum((1, 2)).clamp_min(1)
    most, number = missing.max(0)
    if float(most) > 1 - LEAST_FILLED:
        return None, (
            f"the views contradict each other: what all silhouettes leave fills only {1 - float(most):.0%} of view "
            f"{int(number)}'s. Are the cameras right? The fit began with a ball"
        )
    return mesh, ""


def viewed_place(targets: Targets) -> tuple[Tensor, float]:
    """The point nearest to all viewing axes, and the radius of a ball around it that fills most pictures from top to bottom."""
    camera = targets.cameras
    axes = normalize(camera.matrix[..., 2, :3], dim=-1)
    across = torch.eye(3).to(axes) - axes[..., :, None] * axes[..., None, :]
    eye = torch.eye(3).to(axes) * 1e-6
    middle = torch.linalg.solve(across.sum(0) + eye, (across @ camera.position[..., None]).sum(0))[:, 0]
    radius = float(half_heights(camera, middle).median())
    if not radius > 0:
        raise ValueError(
            "fit_mesh: most cameras look away from the point nearest to their viewing axes, so nothing to begin with can be "
            "placed; they look along their own -z, with y up (OpenCV's: Camera.from_opencv), or give a `template`."
        )
    return middle, radius


def half_heights(camera: Camera, place: Tensor) -> Tensor:
    """Half of what each camera (N,) sees from bottom to top at the distance of a place (3,)."""
    ahead = camera.matrix[..., 2, :3] @ place + camera.matrix[..., 2, 3] if camera.perspective else 1.0
    return ahead / camera.matrix[..., 1, :3].norm(dim=-1)


def _blurred(targets: Targets, alpha: Tensor) -> Tensor:
    """Silhouettes (N, 1, H, W) under the noise; what is unknown counts as covered."""
    known = alpha if targets.masks is None else torch.where(targets.masks > 0, alpha, 1.0)
    margin = 4
    wide = pad(known[:, None], (margin,) * 4, mode="replicate")
    return blur(wide, FilteredCoverage().blur(BLUR))[..., margin:-margin, margin:-margin]


def _grid(low: Tensor, step: float, counts: list[int]) -> Tensor:
    """Points (X, Y, Z, 3), `step` apart, from `low` on."""
    places = torch.meshgrid(*(torch.arange(count) for count in counts), indexing="ij")
    return low + step * torch.stack(places, -1).to(low)


def _least(views: Tensor, cameras: Camera, points: Tensor) -> Tensor:
    """The least value (*S) of all views at points (*S, 3)."""
    height, width = views.shape[-2:]
    least = points.new_full((points[..., 0].numel(),), math.inf)
    for i in range(len(views)):
        places = cameras[i].project(points.reshape(-1, 3), (height, width))
        value = looked_up(views[i], places[:, :2])[0]
        # Behind a perspective camera there is nothing to see, and nothing to say
        least = torch.minimum(least, torch.where(places[:, 2] > 0, value, math.inf) if cameras.perspective else value)
    return least.reshape(points.shape[:-1])


#: The six tetrahedra of a cube, each along a path of its edges from corner 000 to corner 111.
_PATHS = pad(torch.eye(3, dtype=torch.long)[torch.tensor([*itertools.permutations(range(3))])].cumsum(1), (0, 0, 1, 0))

#: The triangles in a tetrahedron with 1, 2 or 3 corners above the level, which come first; each corner lies on an edge.
_CROSSED = {
    1: [[(0, 1), (0, 2), (0, 3)]],
    2: [[(0, 2), (0, 3), (1, 3)], [(0, 2), (1, 3), (1, 2)]],
    3: [[(0, 3), (1, 3), (2, 3)]],
}


def level_set(values: Tensor, low: Tensor, step: float, level: float = 0.5) -> Mesh:
    """The surface {value = level} of values (X, Y, Z) on a grid, `step` apart from `low` on, by marching tetrahedra.

    Closed (outside of the grid there is nothing), without crossings, facing away from where the values are larger.
    """
    values = pad(values, (1,) * 6, value=-math.inf).clamp(min=level - 1)
    strides = torch.tensor(values.stride(), device=values.device)
    flat = values.flatten()
    # Cubes with corners on both sides
    most, least = (max_pool3d(v[None], 2, 1)[0] for v in (values, -values))
    inner = pad((most >= level) & (-least < level), (0, 1) * 3)
    corners = inner.flatten().nonzero() + (_PATHS.to(values.device) @ strides).flatten()[None]
    corners = corners.reshape(-1, 4)
    above = flat[corners] >= level
    # Corners above the level first
    corners, count = corners.gather(1, (~above).to(torch.uint8).argsort(dim=1, stable=True)), above.sum(1)
    ends = torch.cat([corners[count == number][:, faces].flatten(0, 1) for number, faces in _CROSSED.items()])
    above, below = torch.stack(torch.unravel_index(ends, values.shape), -1).to(low).unbind(2)
    ends = ends.sort(-1).values.flatten(0, 1)
    keys, faces = (ends[:, 0] * len(flat) + ends[:, 1]).unique(return_inverse=True)
    ends = torch.stack([keys // len(flat), keys % len(flat)], -1)
    places = torch.stack(torch.unravel_index(ends, values.shape), -1).to(low)
    one, two = flat[ends].unbind(1)
    share = ((level - one) / (two - one)).clamp(APART, 1 - APART)[:, None]
    vertices, faces = low + step * (torch.lerp(places[:, 0], places[:, 1], share) - 1), faces.reshape(-1, 3)
    # All edges of a triangle cross it the same way, wherever they do
    inward = (face_areas(vertices, faces)[0] * (below - above).sum(1)).sum(-1, keepdim=True) < 0
    return Mesh(vertices, torch.where(inward, faces.flip(1), faces))


def _largest_parts(mesh: Mesh) -> Mesh:
    """Without connected parts that are much smaller than the largest."""
    faces, label = mesh.faces, torch.arange(len(mesh.vertices), device=mesh.faces.device)
    while True:
        least = label[faces].amin(1)
        lower = label.scatter_reduce(0, faces.flatten(), least.repeat_interleave(3), "amin")
        lower = lower[lower]
        if bool((lower == label).all()):
            break
        label = lower
    size = torch.bincount(label[faces[:, 0]], minlength=len(label))
    kept = faces[size[label[faces[:, 0]]] >= LEAST_PART * size.max()]
    used, faces = kept.unique(return_inverse=True)
    return Mesh(mesh.vertices[used], faces)
