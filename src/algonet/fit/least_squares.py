"""Cameras by damped least squares: each turned, shifted and zoomed until the mesh looks like its picture."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import avg_pool2d, pad

from algonet.render import Camera, Coverage, SmoothRenderer
from algonet.render.lights import Light

from .alignment import Move, moved, rotation_angle, rotation_matrix
from .progress import geometric
from .simplify import Sides
from .targets import blur, shrinking

#: Poses closer than this are one minimum; measured, runs that end in one agree to a tenth of a degree.
SAME_POSE = 5.0
#: No more cameras than this are rendered at once, nor more pixels than these (512 pictures of 128 x 128).
AT_ONCE, PIXELS_AT_ONCE = 4096, 2**23
#: Shrunken pictures show no more faces than they have pixels, unless told; meshes of fewer than these lose their shape.
LEAST_FACES = 512
#: Derivatives are differences over this share of the noise's scale.
DIFFERENCE = 0.1
#: No step turns further than this half angle's tangent, or shifts and zooms by a larger share: beyond, nothing is linear.
LONGEST_TURN, LONGEST_SHIFT = 0.25, 0.3
#: The damping at first, and what it is multiplied by after a step that helped and one that did not.
DAMPING, LESS, MORE = 1e-2, 1 / 3, 5.0
#: Damping counts each parameter's own curvature, and this share of the largest one.
COMMON = 0.03


@dataclass(frozen=True, eq=False)
class Poses:
    """Cameras (B,), `which` picture (B,) each is to show, and their losses (B,)."""

    cameras: Camera
    which: Tensor
    losses: Tensor

    def __getitem__(self, rows: Tensor | slice) -> Poses:
        return Poses(self.cameras[rows], self.which[rows], self.losses[rows])

    def of_pictures(self) -> list[Poses]:
        """Those of each picture."""
        return [self[self.which == i] for i in range(int(self.which.max()) + 1)]

    def best(self, keep: int) -> Poses:
        """At most `keep` distinct poses of each picture, its best first."""
        return joined([own[_distinct(own)[:keep]] for own in self.of_pictures()])


def joined(parts: list[Poses]) -> Poses:
    """All of them, one after the other."""
    first, *_ = cameras = [part.cameras for part in parts]
    matrix, position = torch.cat([c.matrix for c in cameras]), torch.cat([c.position for c in cameras])
    which, losses = torch.cat([part.which for part in parts]), torch.cat([part.losses for part in parts])
    return Poses(Camera(matrix, position, first.perspective, first.near), which, losses)


def _distinct(poses: Poses) -> Tensor:
    """Which poses to keep, best first: each at least `SAME_POSE` degrees from every better one."""
    order = poses.losses.argsort()
    axes = poses.cameras.axes[order].double()
    apart = (rotation_angle(torch.einsum("aij,bij->ab", axes, axes)) > SAME_POSE).cpu().numpy()
    chosen: list[int] = []
    for i in range(len(order)):
        if apart[i, chosen].all():
            chosen.append(i)
    return order[torch.tensor(chosen, device=order.device)]


class LeastSquares:
    """Cameras (B,) moved until the mesh looks like the pictures (N, H, W, C), each camera like the one that `which` (B,) says.

    Levenberg and Marquardt's method. With the residuals r of all pixels and their derivatives J by the pose's few parameters,

        step = -(J^T J + damping diag(J^T J))^-1 J^T r,

    taken where it lowers |r|^2, and tried again with more damping where not. Steps by the gradient alone, as Adam's, walk
    as far where blurred pictures say nothing as where they say much, and lose the start. J comes from rendering the pose
    once more for each parameter, slightly moved: with so few of them that is cheaper than one backward pass per pixel.
    """

    def __init__(
        self, sides: Sides, pictures: Tensor, start: Poses, *, lights: Sequence[Light], move: Move, learn_fov: bool,
        coverage: Coverage, least_faces: int = LEAST_FACES,
    ):  # fmt: skip
        self.sides = self.detail = sides
        self.least_faces = least_faces
        self.pictures, self.which, self.lights = pictures, start.which, lights
        self.base, self.centre = start.cameras, sides.middle
        self.renderer = SmoothRenderer((1, 1), coverage, shading="vertex", two_sided=False)
        self.renderer.to(self.centre.device)
        #: Per camera three numbers each to turn and to shift by, and one to zoom by; a row (of 7) for each that is fitted.
        self.values = self.base.matrix.new_zeros(len(self.which), 7)
        fitted = [0, 1, 2] + ([5] if move == "distance" else [3, 4, 5] if move else []) + ([6] if learn_fov else [])
        self.fitted = torch.eye(7)[fitted].to(self.values)
        self.damping = torch.full_like(self.values[:, 0], DAMPING)
        self.losses = start.losses
        self.levels: list[tuple[Tensor, float]] = []

    @torch.no_grad()
    def run(
        self, scales: tuple[float, float], stages: int, steps: int, advance: Callable[[], None] = lambda: None
    ) -> None:
        """So many steps, the noise's scale falling geometrically between `scales` in `stages`."""
        stages = min(stages, steps)
        current, scale = -1, scales[0]
        for step in range(steps):
            stage, following = (min(stages - 1, i * stages // steps) if i < steps else stages for i in (step, step + 1))
            if stage != current:
                current, scale = stage, geometric(scales, stage / max(1, stages - 1))
                target = self._set_scale(scale)
                self.losses, curvature, slope = self._linearised(self.values, target, scale)
            self.levels.append((self.losses.mean(), scale))
            tried = self.values + self._step(curvature, slope)
            # After a stage's last step nothing is done with the derivatives
            goes_on = following == stage
            losses, other_curvature, other_slope = self._linearised(tried, target, scale, derivatives=goes_on)
            better = losses < self.losses
            self.values = torch.where(better[:, None], tried, self.values)
            self.losses = torch.where(better, losses, self.losses)
            if goes_on:
                curvature = torch.where(better[:, None, None], other_curvature, curvature)
                slope = torch.where(better[:, None], other_slope, slope)
            self.damping = (self.damping * torch.where(better, LESS, MORE)).clamp(1e-4, 1e3)
            advance()

    def poses(self) -> Poses:
        """What has been found so far."""
        return Poses(self._moved(self.values, slice(None)), self.which, self.losses)

    def history(self) -> list[dict[str, float]]:
        losses = torch.stack([loss for loss, _ in self.levels]).tolist() if self.levels else []
        return [{"loss": loss, "scale": scale} for loss, (_, scale) in zip(losses, self.levels, strict=True)]

    def _step(self, curvature: Tensor, slope: Tensor) -> Tensor:
        """(B, 7): the damped step from J^T J (B, P, P) and J^T r (B, P), no longer than is trusted."""
        own = curvature.diagonal(dim1=-2, dim2=-1)
        damped = self.damping[:, None] * (own + COMMON * own.amax(-1, keepdim=True)) + 1e-12
        # Never singular, thanks to the damping, so no check waits for the device
        step = -torch.linalg.solve_ex(curvature + torch.diag_embed(damped), slope)[0] @ self.fitted
        turn, others = step[:, :3].norm(dim=1), step[:, 3:].abs().amax(1)
        excess = torch.maximum(turn / LONGEST_TURN, others / LONGEST_SHIFT).clamp_min(1.0)
        return step / excess[:, None]

    def _linearised(
        self, values: Tensor, target: Tensor, scale: float, derivatives: bool = True
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Mean squared residuals (B,) with J^T J (B, P, P) and J^T r (B, P); P is 0 without `derivatives`."""
        difference = DIFFERENCE * scale / max(self.pictures.shape[1:3])
        moves = torch.cat([torch.zeros_like(self.fitted[:1]), difference * self.fitted[: None if derivatives else 0]])
        at_once = max(1, min(AT_ONCE, PIXELS_AT_ONCE // target[0, ..., 0].numel()) // len(moves))
        parts = []
        for first in range(0, len(values), at_once):
            part = slice(first, first + at_once)
            seen = self._seen(values[part] + moves[:, None], part)
            residuals = seen[0] - target[self.which[part]].flatten(1)
            slopes = ((seen[1:] - seen[0]) / difference).transpose(0, 1).contiguous()
            slope = (slopes @ residuals[..., None])[..., 0]
            parts.append((residuals.square().mean(1), slopes @ slopes.mT, slope))
        losses, curvature, slope = (torch.cat(part) for part in zip(*parts, strict=True))
        return losses, curvature, slope

    def _seen(self, values: Tensor, part: slice) -> Tensor:
        """What the cameras of this part show when moved by `values` (K, part, 7): (K, part, H * W * C)."""
        rows = torch.arange(len(self.values), device=values.device)[part].repeat(len(values))
        camera = self._moved(values.flatten(0, 1), rows)
        rgb, silhouette = self.detail.seen(self.renderer, camera, self.lights)
        layers = silhouette[..., None]
        if self.pictures.shape[-1] == 4:
            layers = torch.cat([rgb, layers], -1)
        return layers.unflatten(0, values.shape[:2]).flatten(2)

    def _set_scale(self, scale: float) -> Tensor:
        """The pictures blurred for this scale, at the smallest size that shows it, to which renderer and mesh are set."""
        height, width = self.pictures.shape[1:3]
        factor = shrinking(scale, (height, width), 8)
        blurred = blur(self.pictures.movedim(-1, 1), self.renderer.coverage.blur(scale))
        blurred = avg_pool2d(blurred, factor) if factor > 1 else blurred
        self.renderer.size = (height // factor, width // factor)
        self.renderer.set_scale(scale / factor)
        pixels = self.renderer.size[0] * self.renderer.size[1]
        self.detail = self.sides.at_most(max(self.least_faces, pixels)) if factor > 1 else self.sides
        return blurred.movedim(1, -1)

    def _moved(self, values: Tensor, rows: Tensor | slice) -> Camera:
        """The base cameras `rows`, moved rigidly about the centre: a quaternion and a shift each, and a longer lens."""
        base, (turn, shift, zoom) = self.base[rows], values.split([3, 3, 1], -1)
        rotation, axes = rotation_matrix(turn), base.axes
        distance = (base.position - self.centre).norm(dim=-1, keepdim=True)
        # A longer lens steps back as far as keeps the size: what is left for the zoom is the perspective
        shift = shift + pad(1 - zoom.exp(), (2, 0))
        place = self.centre + distance * (shift[..., None, :] @ axes)[..., 0, :]
        base = Camera(_zoomed(base.matrix, zoom), base.position, base.perspective, base.near)
        return moved(base, rotation, place - (rotation @ self.centre[..., None])[..., 0])


def _zoomed(matrix: Tensor, zoom: Tensor) -> Tensor:
    """Camera matrices (B, 4, 4) with focal lengths e^zoom times as long, the principal point as it was."""
    across, depth, last = matrix.split([2, 1, 1], -2)
    centre = (across[..., :3] * depth[..., :3]).sum(-1, keepdim=True) * depth
    return torch.cat([zoom.exp()[..., None] * (across - centre) + centre, depth, last], -2)
