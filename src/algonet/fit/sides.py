"""A mesh at several levels of detail, seen from outside or from both sides."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from algonet.render import Camera, Mesh, SmoothRenderer
from algonet.render.lights import Light

from .simplify import simplified


class Sides:
    """A mesh as the fits see it: a closed one from outside, an `open` one from both sides."""

    def __init__(self, mesh: Mesh, open: bool):
        self.front, self.open = mesh, open
        self._coarser: dict[int, Sides] = {}

    def at_most(self, faces: int) -> Sides:
        """The same with a mesh simplified to about `faces` faces, made once; itself if it has no more."""
        if len(self.front.faces) <= faces:
            return self
        if faces not in self._coarser:
            self._coarser[faces] = Sides(simplified(self.front, faces), self.open)
        return self._coarser[faces]

    def seen(self, renderer: SmoothRenderer, camera: Camera, lights: Sequence[Light]) -> tuple[Tensor, Tensor]:
        """Colours (*B, H, W, 3) before black, and the silhouette (*B, H, W)."""
        renderer.two_sided = self.open
        out = renderer(self.front, camera, lights)
        return out.rgb, out.silhouette
