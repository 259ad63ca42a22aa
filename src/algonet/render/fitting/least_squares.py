"""Cameras by damped least squares: each turned, shifted and zoomed until the mesh looks like its picture."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from ..cameras import Camera
from ..coverage import Coverage
from ..lights import Light
from ..modules import SmoothRenderer
from .rotations import rotation_matrix
from .sides import Sides
from .targets import OPAQUE, blur, camera_axes

#: No more cameras than this are rendered at once.
AT_ONCE = 512
#: Derivatives are differences over this share of the noise's scale.
DIFFERENCE = 0.1
#: No step turns further than this half angle's tangent, or shifts and zooms by a larger share: beyond, nothing is linear.
LONGEST_TURN, LONGEST_SHIFT = 0.25, 0.3
#: The damping at first, and what it is multiplied by after a step that helped and one that did not.
DAMPING, LESS, MORE = 1e-2, 1 / 3, 5.0
#: Damping counts each parameter's own curvature, and this share of the largest one.
COMMON = 0.03


class LeastSquares:
    """Cameras (B,) moved until the mesh looks like one picture, or like one each, (1 or B, H, W, C).

    Levenberg and Marquardt's method. With the residuals r of all pixels and their derivatives J by the pose's few parameters,

        step = -(J^T J + damping diag(J^T J))^-1 J^T r,

    taken where it lowers |r|^2, and tried again with more damping where not. Steps by the gradient alone, as Adam's, walk
    as far where blurred pictures say nothing as where they say much, and lose the start. J comes from rendering the pose
    once more for each parameter, slightly moved: with so few of them that is cheaper than one backward pass per pixel.
    """

    def __init__(
        self, sides: Sides, pictures: Tensor, camera: Camera, *, lights: Sequence[Light], move: bool, learn_fov: bool,
        coverage: Coverage,
    ):  # fmt: skip
        self.sides, self.pictures, self.lights, mesh = sides, pictures, lights, sides.front
        self.renderer = SmoothRenderer((1, 1), coverage, OPAQUE, shading="vertex", two_sided=False)
        self.renderer.to(mesh.vertices.device)
        self.base, self.centre = camera, (mesh.vertices.amin(-2) + mesh.vertices.amax(-2)).detach() / 2
        #: Per camera three numbers each to turn and to shift by, and one to zoom by; those that are fitted.
        self.values = camera.matrix.new_zeros(len(camera.matrix), 7)
        self.fitted = [0, 1, 2] + ([3, 4, 5] if move else []) + ([6] if learn_fov else [])
        self.damping = camera.matrix.new_full((len(camera.matrix),), DAMPING)
        self.losses = camera.matrix.new_zeros(len(camera.matrix))
        self.levels: list[tuple[Tensor, float]] = []

    @torch.no_grad()
    def run(self, numbers: Iterable[int], steps: int, scales: tuple[float, float], stages: int) -> None:
        """The steps `numbers` of `steps`, the noise's scale falling geometrically between `scales` in `stages`."""
        stages = min(stages, steps)
        current, scale = -1, scales[0]
        for step in numbers:
            stage = min(stages - 1, step * stages // steps)
            if stage != current:
                current, scale = stage, scales[0] * (scales[1] / scales[0]) ** (stage / max(1, stages - 1))
                target = self._set_scale(scale)
                self.losses, curvature, slope = self._linearised(self.values, target, scale)
            self.levels.append((self.losses.mean(), scale))
            tried = self.values + self._step(curvature, slope)
            losses, other_curvature, other_slope = self._linearised(tried, target, scale)
            better = losses < self.losses
            self.values = torch.where(better[:, None], tried, self.values)
            self.losses = torch.where(better, losses, self.losses)
            curvature = torch.where(better[:, None, None], other_curvature, curvature)
            slope = torch.where(better[:, None], other_slope, slope)
            self.damping = (self.damping * torch.where(better, LESS, MORE)).clamp(1e-4, 1e3)

    def keep(self, rows: Tensor) -> None:
        """Go on with these cameras only."""
        self.pictures = self.pictures if len(self.pictures) == 1 else self.pictures[rows]
        self.base, self.values = self.base[rows], self.values[rows]
        self.damping, self.losses = self.damping[rows], self.losses[rows]

    def camera(self) -> Camera:
        return self._moved(self.values, slice(None))

    def history(self) -> list[dict[str, float]]:
        losses = torch.stack([loss for loss, _ in self.levels]).tolist() if self.levels else []
        return [{"loss": loss, "scale": scale} for loss, (_, scale) in zip(losses, self.levels, strict=True)]

    def _step(self, curvature: Tensor, slope: Tensor) -> Tensor:
        """(B, 7): the damped step from J^T J (B, P, P) and J^T r (B, P), no longer than is trusted."""
        own = curvature.diagonal(dim1=-2, dim2=-1)
        damped = self.damping[:, None] * (own + COMMON * own.amax(-1, keepdim=True)) + 1e-12
        step = slope.new_zeros(len(slope), 7)
        step[:, self.fitted] = -torch.linalg.solve(curvature + torch.diag_embed(damped), slope)
        turn, others = step[:, :3].norm(dim=1), step[:, 3:].abs().amax(1)
        excess = torch.maximum(turn / LONGEST_TURN, others / LONGEST_SHIFT).clamp_min(1.0)
        return step / excess[:, None]

    def _linearised(self, values: Tensor, target: Tensor, scale: float) -> tuple[Tensor, Tensor, Tensor]:
        """Mean squared residuals (B,) with J^T J (B, P, P) and J^T r (B, P), some cameras at a time."""
        count = len(self.fitted)
        each = max(1, AT_ONCE // (count + 1))
        parts = [
            self._linearised_part(slice(first, first + each), values, target, scale)
            for first in range(0, len(values), each)
        ]
        losses, curvature, slope = (torch.cat(part) for part in zip(*parts, strict=True))
        return losses, curvature, slope

    def _linearised_part(
        self, part: slice, values: Tensor, target: Tensor, scale: float
    ) -> tuple[Tensor, Tensor, Tensor]:
        own, count = values[part], len(self.fitted)
        difference = DIFFERENCE * scale / max(self.pictures.shape[1:3])
        moves = difference * torch.eye(7, dtype=own.dtype, device=own.device)[self.fitted]
        probes = torch.cat([own[None], own + moves[:, None]])
        rows = torch.arange(len(self.values), device=own.device)[part].repeat(count + 1)
        rgb, silhouette = self.sides.seen(self.renderer, self._moved(probes.flatten(0, 1), rows), self.lights)
        layers = silhouette[..., None]
        if target.shape[-1] == 4:
            layers = torch.cat([rgb, layers], -1)
        here, *moved = layers.unflatten(0, (count + 1, len(own))).flatten(2).unbind(0)
        residuals = here - target[part].flatten(1)
        slopes = (torch.stack(moved, 1) - here[:, None]) / difference
        slope = (slopes @ residuals[..., None])[..., 0]
        return residuals.square().mean(1), slopes @ slopes.mT, slope

    def _set_scale(self, scale: float) -> Tensor:
        """The pictures blurred for this scale, at the smallest size that shows it, to which the renderer is set."""
        height, width = self.pictures.shape[1:3]
        factor = 1
        while factor * 2 <= scale and all(n % (factor * 2) == 0 and n // factor >= 16 for n in (height, width)):
            factor *= 2
        blurred = blur(self.pictures.movedim(-1, 1), self.renderer.coverage.blur(scale))
        blurred = torch.nn.functional.avg_pool2d(blurred, factor) if factor > 1 else blurred
        self.renderer.size = (height // factor, width // factor)
        self.renderer.set_scale(scale / factor)
        return blurred.movedim(1, -1).expand(len(self.values), -1, -1, -1)

    def _moved(self, values: Tensor, rows: Tensor | slice) -> Camera:
        """The base cameras `rows`, moved rigidly about the centre: a quaternion and a shift each, and a longer lens."""
        base, (turn, shift, zoom) = self.base[rows], values.split([3, 3, 1], -1)
        rotation, axes = rotation_matrix(turn), camera_axes(base)
        distance = (base.position - self.centre).norm(dim=-1, keepdim=True)
        # A longer lens steps back as far as keeps the size: what is left for the zoom is the perspective
        shift = shift + torch.nn.functional.pad(1 - zoom.exp(), (2, 0))
        moved = self.centre + distance * (shift[..., None, :] @ axes)[..., 0, :]
        offset = moved - (rotation @ self.centre[..., None])[..., 0]
        top = torch.cat([rotation, offset[..., None]], -1)
        last = top.new_tensor([0.0, 0.0, 0.0, 1.0]).expand(len(top), 1, 4)
        eye = (rotation.mT @ (base.position - offset)[..., None])[..., 0]
        return Camera(_zoomed(base.matrix, zoom) @ torch.cat([top, last], -2), eye, base.perspective, base.near)


def _zoomed(matrix: Tensor, zoom: Tensor) -> Tensor:
    """Camera matrices (B, 4, 4) with focal lengths e^zoom times as long, the principal point as it was."""
    x, y, depth, last = matrix.unbind(-2)
    factor = zoom.exp()
    rows = []
    for row in (x, y):
        centre = (row[..., :3] * depth[..., :3]).sum(-1, keepdim=True) * depth
        rows.append(factor * (row - centre) + centre)
    return torch.stack([*rows, depth, last], -2)
