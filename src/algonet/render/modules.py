"""The renderer as a module: mesh, camera and lights in, pictures out."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor, nn

from algonet.relax import BoundedSum, TConorm
from algonet.relax.modules import SoftModule

from .cameras import Camera, check_size
from .constants import tensor_like
from .coverage import FilteredCoverage
from .functional import DEPTH_STEEPNESS, AnyCoverage, _expanded, render_attributes
from .lights import AmbientLight, DirectionalLight, Lambert, Light, Surface, illuminate
from .meshes import Mesh
from .settings import Raster
from .textures import sample_texture
from .vectors import normalise

#: What a mesh without colours looks like, and what lights it when nothing is said.
GREY = 0.8
DEFAULT_LIGHTS = (AmbientLight(), DirectionalLight())
SHADINGS = ("pixel", "vertex")


class Rendering(NamedTuple):
    """`rgb` (*B, H, W, 3), `silhouette` (*B, H, W), `depth` (*B, H, W), and `attributes` (*B, H, W, C): those the caller
    asked for, over 0, with C = 0 if none. All differentiable."""

    rgb: Tensor
    silhouette: Tensor
    depth: Tensor
    attributes: Tensor


class SmoothRenderer(SoftModule):
    """Renders meshes smoothly, with light and colour; holds the softness, which can be annealed or learned.

    `shading="pixel"` renders normals, positions and colours and lights each pixel (deferred); `"vertex"` lights vertices
    (face colours: faces) and renders the result, which is cheaper. `background` is the colour, and `background_depth` the
    depth, where nothing is. The noise's scale and the depth steepness are in the `state_dict`.

    >>> from algonet.render import icosphere
    >>> renderer = SmoothRenderer(size=(24, 32))
    >>> out = renderer(icosphere(2), Camera.look_at((0.0, 0.0, 3.0)))
    >>> out.rgb.shape, out.silhouette.shape
    (torch.Size([24, 32, 3]), torch.Size([24, 32]))
    """

    depth_steepness: Tensor

    def __init__(
        self,
        size: int | tuple[int, int] = (256, 256),
        coverage: AnyCoverage | None = None,
        conorm: TConorm | None = None,
        *,
        depth_steepness: float | Tensor = DEPTH_STEEPNESS,
        surface: Surface = Lambert(),
        shading: str = "pixel",
        background: float | Tensor | tuple[float, float, float] = 0.0,
        background_depth: float = 0.0,
        two_sided: bool = True,
        epsilon: float = 1e-4,
        deterministic: bool = False,
        backend: str = "auto",
    ):
        coverage = FilteredCoverage() if coverage is None else coverage
        if not isinstance(coverage, AnyCoverage):
            raise TypeError(
                "SmoothRenderer: `coverage` must be a coverage such as FilteredCoverage(StudentT(df=8, scale=1.0)), "
                f"got {coverage!r}."
            )
        super().__init__(coverage.noise if isinstance(coverage, FilteredCoverage) else coverage.sigmoid)
        if shading not in SHADINGS:
            raise ValueError(f"SmoothRenderer: `shading` must be one of {', '.join(SHADINGS)}, got {shading!r}.")
        self.size = check_size("SmoothRenderer", size)
        self._coverage = coverage
        self.conorm = BoundedSum() if conorm is None else conorm
        if isinstance(depth_steepness, nn.Parameter):
            self.depth_steepness = depth_steepness
        else:
            self.register_buffer(
                "depth_steepness", torch.as_tensor(depth_steepness, dtype=torch.get_default_dtype()).clone()
            )
        self.surface, self.shading = surface, shading
        self.background, self.background_depth = background, background_depth
        self.two_sided, self.epsilon = two_sided, epsilon
        self.deterministic, self.backend = deterministic, backend

    @property
    def coverage(self) -> AnyCoverage:
        """The coverage at its present softness."""
        field = "noise" if isinstance(self._coverage, FilteredCoverage) else "sigmoid"
        return dataclasses.replace(self._coverage, **{field: self.relax})

    def forward(
        self, mesh: Mesh, camera: Camera, lights: Sequence[Light] = DEFAULT_LIGHTS, attributes: Tensor | None = None
    ) -> Rendering:
        _check_scene(mesh, camera, lights)
        check_finite("SmoothRenderer", mesh.vertices)
        dtype = mesh.vertices.dtype
        if dtype in (torch.float16, torch.bfloat16):
            # Guards against division by zero are nothing in half precision
            out = self.forward(mesh.to(torch.float32), camera, lights, attributes)
            return Rendering(*(t.to(dtype) for t in out))
        extra = attributes if attributes is not None else mesh.vertices.new_zeros(mesh.vertices.shape[-2], 0)
        if self.shading == "vertex" and mesh.texture is None:
            return self._lit_vertices(mesh, camera, lights, extra)
        return self._lit_pixels(mesh, camera, lights, extra)

    if TYPE_CHECKING:

        def __call__(
            self, mesh: Mesh, camera: Camera, lights: Sequence[Light] = DEFAULT_LIGHTS, attributes: Tensor | None = None
        ) -> Rendering: ...

    def _raster(
        self, mesh: Mesh, camera: Camera, attributes: Tensor, rows: Tensor, background: Tensor | float
    ) -> Raster:
        return render_attributes(
            mesh.vertices,
            mesh.faces,
            attributes,
            camera,
            size=self.size,
            attribute_faces=rows,
            background=background,
            background_depth=self.background_depth,
            coverage=self.coverage,
            conorm=self.conorm,
            depth_steepness=self.depth_steepness,
            two_sided=self.two_sided,
            epsilon=self.epsilon,
            deterministic=self.deterministic,
            backend=self.backend,
        )

    def _lit_vertices(self, mesh: Mesh, camera: Camera, lights: Sequence[Light], extra: Tensor) -> Rendering:
        albedo, rows = _albedo(mesh)
        eye = camera.position.to(mesh.vertices)
        if mesh.face_colors is not None:
            corners = mesh.vertices[..., mesh.faces.long(), :]
            normals, positions = mesh.face_normals(), corners.mean(-2)
        else:
            normals, positions = mesh.vertex_normals(), mesh.vertices
        if eye.dim() > 1 and positions.dim() == 2:
            normals, positions = (
                normals.expand(*eye.shape[:-1], *normals.shape),
                positions.expand(*eye.shape[:-1], *positions.shape),
            )
        normals = _towards(normals, positions, eye) if self.two_sided else normals
        color = _lit(albedo, *illuminate(normals, positions, eye, lights, self.surface))
        table, rows = _table([(color, rows), (extra, mesh.faces)])
        behind = torch.cat([self._background(table), table.new_zeros(extra.shape[-1])])
        image, silhouette, depth = self._raster(mesh, camera, table, rows, behind)
        return Rendering(image[..., :3], silhouette, depth, image[..., 3:])

    def _lit_pixels(self, mesh: Mesh, camera: Camera, lights: Sequence[Light], extra: Tensor) -> Rendering:
        albedo, rows = _albedo(mesh)
        parts = [(albedo, rows), (mesh.vertex_normals(), mesh.faces), (mesh.vertices, mesh.faces), (extra, mesh.faces)]
        table, rows = _table(parts)
        image, silhouette, depth = self._raster(mesh, camera, table, rows, 0.0)
        # Attributes come multiplied by the silhouette, over 0; the guard is below what can be seen
        opaque = silhouette[..., None]
        means = image * torch.rsqrt(opaque * opaque + 1e-10)
        color, normals, positions, _ = means.split([albedo.shape[-1], 3, 3, extra.shape[-1]], -1)
        if mesh.texture is not None:
            color = sample_texture(mesh.texture, color)
        eye = camera.position.to(mesh.vertices)
        normals = normalise(normals)
        normals = _towards(normals, positions, eye) if self.two_sided else normals
        color = _lit(color, *illuminate(normals, positions, eye, lights, self.surface))
        rgb = torch.lerp(self._background(table), color, opaque)
        return Rendering(rgb, silhouette, depth, image[..., albedo.shape[-1] + 6 :])

    def _background(self, like: Tensor) -> Tensor:
        return tensor_like(self.background, like).expand(3)

    def extra_repr(self) -> str:
        return f"size={self.size}, {super().extra_repr()}, shading={self.shading}, backend={self.backend}"


def _check_scene(mesh: Mesh, camera: Camera, lights: Sequence[Light]) -> None:
    """Raise where the arguments of a renderer's call are not what they should be; swapped ones are the usual slip."""
    wanted = "call it as renderer(mesh, camera, lights)"
    if not isinstance(mesh, Mesh):
        raise TypeError(f"SmoothRenderer: the first argument must be a Mesh, got {type(mesh).__name__}; {wanted}.")
    if not isinstance(camera, Camera):
        raise TypeError(f"SmoothRenderer: the second argument must be a Camera, got {type(camera).__name__}; {wanted}.")
    if not isinstance(lights, (tuple, list)):
        raise TypeError(f"SmoothRenderer: `lights` must be a sequence such as (light,), got {type(lights).__name__}.")


def check_finite(where: str, vertices: Tensor) -> None:
    """Raise for vertices that are not numbers, where looking costs nothing (on the CPU, outside of transforms)."""
    if vertices.device.type != "cpu" or torch.compiler.is_compiling():
        return
    if torch._C._functorch.is_functorch_wrapped_tensor(vertices):
        return
    wrong = (~torch.isfinite(vertices)).any(-1)
    if bool(wrong.any()):
        first = tuple(wrong.nonzero()[0].tolist())
        raise ValueError(
            f"{where}: {int(wrong.sum())} of {wrong.numel()} vertices are NaN or infinite, the first at index "
            f"{first[0] if len(first) == 1 else first}; they came so: look at the step that made them."
        )


def _albedo(mesh: Mesh) -> tuple[Tensor, Tensor]:
    """Colours (or uv, if there is a texture) and the rows of each face's corners in them."""
    if mesh.texture is not None and mesh.uv is not None:
        return mesh.uv, mesh.uv_faces if mesh.uv_faces is not None else mesh.faces
    if mesh.face_colors is not None:
        own = torch.arange(len(mesh.faces), device=mesh.faces.device, dtype=mesh.faces.dtype)
        return mesh.face_colors, own[:, None].expand(-1, 3)
    if mesh.vertex_colors is not None:
        return mesh.vertex_colors, mesh.faces
    return mesh.vertices.new_full((mesh.vertices.shape[-2], 3), GREY), mesh.faces


def _lit(albedo: Tensor, diffuse: Tensor, specular: Tensor | None) -> Tensor:
    return albedo * diffuse if specular is None else torch.addcmul(specular, albedo, diffuse)


def _table(parts: Sequence[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    """Attributes with different rows per face as one table: shared rows if all agree, else one row per corner."""
    parts = [(t, rows) for t, rows in parts if t.shape[-1] > 0]
    batch = torch.broadcast_shapes(*(t.shape[:-2] for t, _ in parts))
    same = all(rows is parts[0][1] for _, rows in parts)
    if same:
        return torch.cat([_expanded(t, batch, 2) for t, _ in parts], -1), parts[0][1]
    rows = parts[0][1]
    corners = [t[..., rows.long().reshape(-1), :].expand(*batch, -1, -1) for t, rows in parts]
    return torch.cat(corners, -1), torch.arange(rows.numel(), device=rows.device).reshape(rows.shape)


def _towards(normals: Tensor, positions: Tensor, eye: Tensor) -> Tensor:
    """Normals turned to the eye's side, smoothly: two-sided surfaces are lit on the side that is seen."""
    eye = eye if eye.dim() == 1 else eye.reshape(*eye.shape[:-1], *[1] * (positions.dim() - eye.dim()), 3)
    way = eye - positions
    # cosine / sqrt(cosine^2 + 1e-4), with the way's length multiplied in
    side, square = (normals * way).sum(-1, keepdim=True), way.square().sum(-1, keepdim=True)
    return normals * (side * torch.rsqrt(side * side + 1e-4 * square + torch.finfo(way.dtype).tiny))
