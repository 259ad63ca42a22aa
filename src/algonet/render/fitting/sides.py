"""Open meshes, seen from both sides."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from ..cameras import Camera
from ..lights import Light
from ..meshes import Mesh
from ..modules import SmoothRenderer
from .simplify import simplified

#: How far the larger of two silhouettes is rounded where they cross.
ROUNDING = 0.005


class Sides:
    """A mesh as one-sided renderers see it: of a closed one the outside, of an `open` one the larger of both sides'
    silhouettes.

    The sum over both sides, which a two-sided renderer shows, covers the outline of a closed surface twice, and is fatter than
    what a picture shows, the more the wider the noise is. The larger of both is right wherever one of the sides covers all
    that is seen: through an opening one sees the inside, and elsewhere the inside lies behind the outside.
    """

    def __init__(self, mesh: Mesh, open: bool):
        self.front, self.back = mesh, None
        if open:
            turned = {"faces": mesh.faces.flip(-1), "seamless": mesh.seamless}
            if mesh.uv_faces is not None:
                turned["uv_faces"] = mesh.uv_faces.flip(-1)
            if mesh.normals is not None:
                turned["normals"] = -mesh.normals
            self.back = mesh.replace(**turned)
        self._coarser: dict[int, Sides] = {}

    def at_most(self, faces: int) -> Sides:
        """The same with a mesh simplified to about `faces` faces, made once; itself if it has no more."""
        if len(self.front.faces) <= faces:
            return self
        if faces not in self._coarser:
            self._coarser[faces] = Sides(simplified(self.front, faces), self.back is not None)
        return self._coarser[faces]

    def seen(self, renderer: SmoothRenderer, camera: Camera, lights: Sequence[Light]) -> tuple[Tensor, Tensor]:
        """Colours (*B, H, W, 3) before black, and the silhouette (*B, H, W)."""
        front = renderer(self.front, camera, lights)
        if self.back is None:
            return front.rgb, front.silhouette
        back = renderer(self.back, camera, lights)
        apart = (front.silhouette - back.silhouette) / 2
        middle = (front.silhouette + back.silhouette) / 2
        silhouette = middle + (apart * apart + ROUNDING * ROUNDING).sqrt() - ROUNDING
        # What the inside adds
        share = (silhouette - front.silhouette) / (back.silhouette + 1e-3)
        return front.rgb + share[..., None] * back.rgb, silhouette
