"""The renderer as a module: mesh, camera and lights in, pictures out."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from algonet.core import tracing
from algonet.core.backends import check_backend
from algonet.core.checks import broadcast_shapes, check_size, check_softness, check_spec
from algonet.core.hints import write_instead
from algonet.core.identity import PLANS, interned, signature, unit
from algonet.core.pictures import png_bytes
from algonet.relax import CONORMS, TConorm
from algonet.relax.modules import SoftModule
from algonet.relax.softmax import Choice

from .cameras import Camera
from .coverage import DEFAULT_COVERAGE, Coverage
from .functional import (
    DEPTH_STEEPNESS,
    Pictures,
    camera_points,
    check_options,
    check_picture,
    expanded,
    is_sharp,
    render_attributes,
)
from .lights import AmbientLight, BlinnPhong, Headlight, Lambert, Light, Surface, illuminate, light_table, shading_of
from .meshes import Mesh, preview
from .operation import LIT
from .reference import unproject
from .settings import DEFAULT_CONORM, Raster, RasterSettings
from .textures import cut_faces, sample_pyramid, texture_levels
from .vectors import EPSILON, GREY, tensor_like

#: What lights a mesh when nothing is said.
DEFAULT_LIGHTS = (AmbientLight(), Headlight())
SHADINGS = ("pixel", "vertex")
#: Pictures of a batch that a notebook shows.
SHOWN = 4


class Rendering(NamedTuple):
    """`rgb` (*B, H, W, 3), `silhouette` (*B, H, W), `depth` (*B, H, W), and `attributes` (*B, H, W, C): those the caller
    asked for, over 0, with C = 0 if none. All differentiable."""

    rgb: Tensor
    silhouette: Tensor
    depth: Tensor
    attributes: Tensor

    def _repr_png_(self) -> bytes | None:
        """In a notebook: the picture, or the first pictures of a batch side by side."""
        if not self.rgb.numel():
            return None
        first = self.rgb.detach().reshape(-1, *self.rgb.shape[-3:])[:SHOWN]
        return png_bytes(torch.cat(list(first), dim=1))


class _Held(NamedTuple):
    form: Coverage
    softness: Any
    steepness: Any
    sharp: bool


class SmoothRenderer(SoftModule):
    """Renders meshes smoothly, with light and colour; holds the softness, which can be annealed or learned.

    `shading="pixel"` lights each pixel by the mean normal and colour that it sees; `"vertex"` lights vertices (face colours:
    faces) and renders the result. `background` is the colour where nothing is; `depth` is the surface's, composed only
    with a `background_depth`. Without lights, some ambient light and a headlight. Any coverage
    will do. Its softness and the depth steepness are in the `state_dict`.

    >>> from algonet.render import icosphere
    >>> renderer = SmoothRenderer(size=(24, 32))
    >>> out = renderer(icosphere(2), Camera.look_at((0.0, 0.0, 3.0)))
    >>> out.rgb.shape, out.silhouette.shape
    (torch.Size([24, 32, 3]), torch.Size([24, 32]))
    """

    #: What takes features as a mesh, for the error where this is put between layers.
    as_layer = "RenderInverse(faces, size), from algonet.ran"
    depth_steepness: Tensor

    def __init__(
        self,
        size: int | tuple[int, int] = (256, 256),
        coverage: Coverage | None = None,
        conorm: TConorm | None = None,
        *,
        depth_steepness: float | Tensor = DEPTH_STEEPNESS,
        surface: Surface = Lambert(),
        shading: str = "pixel",
        background: float | Tensor | tuple[float, float, float] = 0.0,
        background_depth: float | None = None,
        two_sided: bool = True,
        epsilon: float = EPSILON,
        deterministic: bool = False,
        backend: str = "auto",
    ):
        coverage = DEFAULT_COVERAGE if coverage is None else coverage
        check_options("SmoothRenderer", coverage, epsilon)
        check_backend("SmoothRenderer", backend)
        check_softness("SmoothRenderer", "depth_steepness", depth_steepness)
        super().__init__(coverage.relax, depth=Choice(depth_steepness))
        if shading not in SHADINGS:
            raise ValueError(f"SmoothRenderer: `shading` must be one of {', '.join(SHADINGS)}, got {shading!r}.")
        self.size = check_size("SmoothRenderer", size)
        _check_kind("conorm", conorm, TConorm, "a t-conorm such as BoundedSum(8)", CONORMS)
        _check_kind("surface", surface, Surface, "a surface such as Lambert() or BlinnPhong()", (Lambert, BlinnPhong))
        _check_background(background)
        check_picture("SmoothRenderer", (), self.size, 5, torch.empty(0))
        # Without its softness, which the module holds: a copy must not carry a second one
        self._coverage = coverage.with_relax(unit(coverage.relax))
        self._coverage_form = coverage.form()
        #: The name of the coverage's softness, how many pixels one of it are, and the number in it, if that is known.
        self._softness = self._coverage.relax.softness_field
        self._unit = self.size[0] / 2 if getattr(coverage, "units", "pixels") == "ndc" else 1
        self._known: tuple[Tensor, int, float] | None = None
        self.conorm = DEFAULT_CONORM if conorm is None else conorm
        self.surface, self.shading = surface, shading
        self.background, self.background_depth = background, background_depth
        self.two_sided, self.epsilon = two_sided, epsilon
        self.deterministic, self.backend = deterministic, backend

    @property
    def coverage(self) -> Coverage:
        """The coverage at its present softness."""
        return self._coverage.with_relax(self.relax)

    def set_scale(self, pixels: float) -> None:
        """Make the coverage, whatever it is, about `pixels` soft, in place."""
        check_softness("SmoothRenderer", "pixels", pixels)
        if self._softness is None:
            raise ValueError(
                f"SmoothRenderer: {self._coverage.relax!r} has no softness to set; take another relaxation."
            )
        self.set_softness(self._softness, self._coverage.softness_for(pixels, self.size[0]))

    def set_softness(self, attribute: str, value: float) -> None:
        super().set_softness(attribute, value)
        if attribute == self._softness:
            self._remember(value)

    def _remember(self, value: float | None) -> None:
        """Remember the number that is now in the coverage's softness; `None`: it is not known."""
        softness: Tensor = getattr(self, self._softness or "depth_steepness")
        if value is None or softness.requires_grad or softness.is_inference():
            self._known = None
        else:
            self._known = softness, softness._version, value

    def _number(self) -> float | None:
        """What is in the coverage's softness, if that is known without a look; a compiled graph does not know."""
        known = self._known
        if known is None or tracing.compiling() or known[0] is not getattr(self, self._softness or ""):
            return None
        return known[2] if known[1] == known[0]._version else None

    def __getstate__(self) -> dict:
        # A copy's tensors are others
        return {**super().__getstate__(), "_known": None}

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> SmoothRenderer:
        """Moving the module keeps what is known of its softness, which can be read for free on the CPU only."""
        if self._softness is None:
            return super()._apply(fn, recurse)
        before, number = getattr(self, self._softness), self._number()
        if number is None and before.numel() == 1 and tracing.readable(before):
            number = float(before.detach())
        super()._apply(fn, recurse)
        self._remember(number)
        return self

    @tracing.outside_autocast
    def forward(
        self, mesh: Mesh, camera: Camera, lights: Sequence[Light] = DEFAULT_LIGHTS, attributes: Tensor | None = None
    ) -> Rendering:
        _check_kinds(mesh, camera, lights)
        vertices = mesh.vertices
        if tracing.readable(vertices) and not bool(torch.isfinite(vertices).all()):
            raise _not_finite(vertices)
        if vertices.dtype in (torch.float16, torch.bfloat16):
            # Guards against division by zero are nothing in half precision
            out = self.forward(mesh.to(torch.float32), camera, lights, attributes)
            return Rendering(*(t.to(vertices.dtype) for t in out))
        if mesh.texture is None and self.shading == "pixel":
            return self._lit_pixels(mesh, camera, lights, attributes)
        _check_scene(mesh, attributes)
        textured = self._lit_textures if mesh.seamless else self._lit_pieces
        lit = self._lit_vertices if mesh.texture is None else textured
        return lit(mesh, camera, lights, attributes)

    if TYPE_CHECKING:

        def __call__(
            self, mesh: Mesh, camera: Camera, lights: Sequence[Light] = DEFAULT_LIGHTS, attributes: Tensor | None = None
        ) -> Rendering: ...

    def _lit_pixels(self, mesh: Mesh, camera: Camera, lights: Sequence[Light], attributes: Tensor | None) -> Rendering:
        """Pixels lit where they are made, in one pass."""
        vertices, held, behind = mesh.vertices, self._held(), self._behind()
        lit = [part for light in lights for part in ((type(light),), *light.parts())]
        options = (self.size, held.form, held.sharp, self.conorm, self.surface, self.two_sided, self.epsilon,
                   self.deterministic, self.backend, self.background_depth is None, camera.perspective)  # fmt: skip
        key = signature(
            "SmoothRenderer", vertices, mesh.faces, mesh.vertex_colors, mesh.face_colors, mesh.normals, attributes,
            camera.matrix, camera.position, camera.near, *behind, held.softness, held.steepness, options, *lit,
        )  # fmt: skip
        run = None if key is None else PLANS.find(key)
        if run is None:
            _check_scene(mesh, attributes)
        albedo, rows = _albedo(mesh)
        colored = albedo is not None
        if attributes is not None and attributes.shape[-1]:
            albedo, rows = _table([(albedo, rows), (attributes.to(vertices), mesh.faces)], vertices)
        table = vertices.new_empty(1, 0) if albedo is None else albedo.to(vertices)
        if run is None:
            run = self._pictures(held, vertices, table, camera, lights, colored)
            run.keep(key, vertices)
        normals = None if mesh.normals is None else mesh.vertex_normals()
        soft = held.softness, held.steepness, camera.near
        lamps = run.lamps if run.lamps is not None else light_table(lights, vertices)
        return Rendering(*run(vertices, table, mesh.faces, rows, behind, soft, camera, lamps, normals))

    def _pictures(
        self, held: _Held, vertices: Tensor, table: Tensor, camera: Camera, lights: Sequence[Light], colored: bool
    ) -> Pictures:
        settings = RasterSettings(
            *self.size, held.form, float(self.epsilon), interned(self.conorm), self.two_sided, camera.perspective,
            self.background_depth is not None, self.deterministic, shading_of(lights, self.surface, self.two_sided), colored,
            held.sharp,
        )  # fmt: skip
        return Pictures("SmoothRenderer", LIT, settings, self.backend, vertices, table, self._behind(), camera, lights)

    def _lit_vertices(
        self, mesh: Mesh, camera: Camera, lights: Sequence[Light], attributes: Tensor | None
    ) -> Rendering:
        albedo, rows = _albedo(mesh)
        if mesh.face_colors is not None:
            corners = mesh.vertices[..., mesh.faces.long(), :]
            normals, positions = mesh.face_normals(), corners.mean(-2)
        else:
            normals, positions = mesh.vertex_normals(deterministic=self.deterministic or None), mesh.vertices
        color = self._lit(albedo, normals, positions, camera, lights)
        table, rows = _table([(color, rows), (attributes, mesh.faces)], mesh.vertices)
        behind = torch.cat([self._background(table), table.new_zeros(table.shape[-1] - 3)])
        image, silhouette, depth = self._raster(mesh, camera, table, rows, behind, self.background_depth)
        return Rendering(image[..., :3], silhouette, depth, image[..., 3:])

    def _lit_textures(
        self, mesh: Mesh, camera: Camera, lights: Sequence[Light], attributes: Tensor | None
    ) -> Rendering:
        """Texture coordinates, levels and normals rendered, then looked up and lit."""
        rows = mesh.faces if mesh.uv_faces is None else mesh.uv_faces
        assert mesh.texture is not None
        assert mesh.uv is not None
        uv = mesh.uv.to(mesh.vertices)
        parts = [
            (uv, rows),
            (self._levels(mesh, camera, uv, rows), torch.arange(rows.numel(), device=rows.device).reshape(rows.shape)),
            (mesh.vertex_normals(deterministic=self.deterministic or None), mesh.faces),
            (attributes, mesh.faces),
        ]
        table, rows = _table(parts, mesh.vertices)
        image, silhouette, depth = self._raster(mesh, camera, table, rows, 0.0, None)
        # Attributes come multiplied by the silhouette, over 0; the guard is below what can be seen
        opaque = silhouette[..., None]
        means = image * torch.rsqrt(opaque * opaque + 1e-10)
        positions = unproject(depth, camera.pixel_matrix(self.size).to(depth), camera.perspective)
        color = sample_pyramid(mesh.texture, means[..., :2], means[..., 2])
        albedo, normals, places = (t.flatten(-3, -2) for t in (color, means[..., 3:6], positions))
        color = self._lit(albedo, normals, places, camera, lights).unflatten(-2, self.size)
        rgb = torch.lerp(self._background(color), color, opaque)
        if self.background_depth is not None:
            depth = torch.lerp(tensor_like(self.background_depth, depth), depth, silhouette)
        return Rendering(rgb, silhouette, depth, image[..., 6:])

    def _levels(self, mesh: Mesh, camera: Camera, uv: Tensor, rows: Tensor) -> Tensor:
        """The level of the texture's pyramid at every corner, (*B, 3 F, 1)."""
        assert mesh.texture is not None
        points = camera_points(mesh.vertices, camera, self.size)
        w = torch.ones_like(points[..., 2:])
        if camera.perspective:
            # What is nearer is not seen
            w = torch.maximum(points[..., 2:], tensor_like(camera.near, points)[..., None, None] / 2)
        texels = (int(mesh.texture.shape[-3]), int(mesh.texture.shape[-2]))
        spread = self.coverage.spread(self.size[0])
        levels = texture_levels(torch.cat([points[..., :2], w], -1), mesh.faces, uv, rows, texels, spread)
        return levels.flatten(-2)[..., None]

    def _lit_pieces(self, mesh: Mesh, camera: Camera, lights: Sequence[Light], attributes: Tensor | None) -> Rendering:
        """Faces cut into pieces about a pixel large, coloured at their corners: where uv jump between faces, colours may be
        mixed, uv may not."""
        vertices, normals, faces, table = cut_faces(mesh, self.size, attributes)
        held, lamps = self._held(), light_table(lights, vertices)
        run = self._pictures(held, vertices, table, camera, lights, True)
        soft = held.softness, held.steepness, camera.near
        return Rendering(*run(vertices, table, faces, faces, self._behind(), soft, camera, lamps, normals))

    def _lit(
        self, albedo: Tensor | None, normals: Tensor, positions: Tensor, camera: Camera, lights: Sequence[Light]
    ) -> Tensor:
        """Surface points (*B, N, 3) lit."""
        albedo = torch.full_like(positions, GREY) if albedo is None else albedo.to(positions)
        eye, shading = camera.position.to(positions), shading_of(lights, self.surface, self.two_sided)
        return illuminate(albedo, normals, positions, eye, light_table(lights, positions), shading)

    def _raster(
        self,
        mesh: Mesh,
        camera: Camera,
        attributes: Tensor,
        rows: Tensor,
        background: Tensor | float,
        depth: float | None,
    ) -> Raster:
        return render_attributes(
            mesh.vertices, mesh.faces, attributes, camera, size=self.size, attribute_faces=rows, background=background,
            background_depth=depth, coverage=self.coverage, conorm=self.conorm, depth_steepness=self._held().steepness,
            two_sided=self.two_sided, epsilon=self.epsilon, deterministic=self.deterministic, backend=self.backend,
        )  # fmt: skip

    def _held(self) -> _Held:
        """The coverage's form, its softness in pixels, the depth steepness, and whether the noise is known to be sharp."""
        unit = self._unit
        if self._overrides or self._softness is None:
            coverage = self.coverage
            steepness: Any = self.relaxation("depth")
            softness = coverage.softness(self.size[0])
            return _Held(coverage.form(), softness, steepness.steepness, is_sharp(softness))
        number, softness = self._number(), getattr(self, self._softness)
        sharp = number is not None and is_sharp(number * unit)
        return _Held(self._coverage_form, softness if unit == 1 else softness * unit, self.depth_steepness, sharp)

    def _behind(self) -> tuple[Any, Any]:
        """Colour and depth of the background; numbers as they are, which need no tensor."""
        background = self.background
        if not isinstance(background, (Tensor, int, float)):
            background = tuple(background)
        return background, 0.0 if self.background_depth is None else self.background_depth

    def _background(self, like: Tensor) -> Tensor:
        return tensor_like(self.background, like).expand(3)

    def extra_repr(self) -> str:
        return f"size={self.size}, {super().extra_repr()}, shading={self.shading}, backend={self.backend}"


def _check_kind(name: str, value: object, kind: Any, wanted: str, choices: Iterable[type]) -> None:
    if value is not None and not isinstance(value, kind):
        instead = write_instead(name, value, choices)
        raise TypeError(f"SmoothRenderer: `{name}` must be {wanted}, got {value!r}{instead}.")


def _check_background(background: Any) -> None:
    """Raise unless it is one number or three, as a tensor or not."""
    if isinstance(background, Tensor):
        fine, got = background.shape in ((), (1,), (3,)), f"a tensor of shape {tuple(background.shape)}"
    else:
        parts = background if isinstance(background, (tuple, list)) and len(background) == 3 else (background,)
        fine, got = all(isinstance(part, (int, float, Tensor)) for part in parts), repr(background)
    if not fine:
        raise TypeError(
            f"SmoothRenderer: `background` must be a number or (red, green, blue), got {got}; white is 1.0. To put a picture "
            "behind, mix it with `rgb` by the `silhouette` of a rendering over 0."
        )


def _check_kinds(mesh: Mesh, camera: Camera, lights: Sequence[Light]) -> None:
    """Raise where the arguments of a renderer's call are not of their kinds; swapped ones are the usual slip."""
    wanted = "call it as renderer(mesh, camera, lights)"
    if not isinstance(mesh, Mesh):
        raise TypeError(f"SmoothRenderer: the first argument must be a Mesh, got {type(mesh).__name__}; {wanted}.")
    if not isinstance(camera, Camera):
        raise TypeError(f"SmoothRenderer: the second argument must be a Camera, got {type(camera).__name__}; {wanted}.")
    if not isinstance(lights, (tuple, list)):
        raise TypeError(f"SmoothRenderer: `lights` must be a sequence such as (light,), got {type(lights).__name__}.")
    for light in lights:
        if not isinstance(light, Light):
            raise TypeError(f"SmoothRenderer: `lights` must hold lights such as AmbientLight(), got {light!r}.")


def _check_scene(mesh: Mesh, attributes: Tensor | None) -> None:
    for name in ("vertex_colors", "face_colors", "texture"):
        colors = getattr(mesh, name)
        if colors is not None and colors.shape[-1] != 3:
            raise ValueError(
                f"SmoothRenderer: the mesh's `{name}` must have three channels, got {tuple(colors.shape)}; greys are "
                "repeated by expand, an alpha is dropped by [..., :3]."
            )
    if attributes is not None:
        rows = mesh.vertices.shape[-2]
        check_spec("SmoothRenderer", "attributes", attributes, f"*batch {rows} C", hint=": a row per vertex")


def _not_finite(vertices: Tensor) -> ValueError:
    wrong = (~torch.isfinite(vertices)).any(-1)
    first = tuple(wrong.nonzero()[0].tolist())
    return ValueError(
        f"SmoothRenderer: {int(wrong.sum())} of {wrong.numel()} vertices are NaN or infinite, the first at index "
        f"{first[0] if len(first) == 1 else first}; they came so: look at the step that made them."
    )


def _albedo(mesh: Mesh) -> tuple[Tensor | None, Tensor]:
    """Colours, if the mesh has any, and the rows of each face's corners in them."""
    if mesh.face_colors is not None:
        own = torch.arange(len(mesh.faces), device=mesh.faces.device, dtype=mesh.faces.dtype)
        return mesh.face_colors, own[:, None].expand(-1, 3)
    return mesh.vertex_colors, mesh.faces


def _table(parts: Sequence[tuple[Tensor | None, Tensor]], like: Tensor) -> tuple[Tensor, Tensor]:
    """Attributes with different rows per face as one table: shared rows if all agree, else one row per corner."""
    there = [(t.to(like), rows) for t, rows in parts if t is not None and t.shape[-1] > 0]
    batch = broadcast_shapes(*(t.shape[:-2] for t, _ in there))
    rows = there[0][1]
    if len(there) == 1:
        return there[0]
    if all(other is rows for _, other in there):
        return torch.cat([expanded(t, batch, 2) for t, _ in there], -1), rows
    corners = [t[..., rows.long().reshape(-1), :].expand(*batch, -1, -1) for t, rows in there]
    return torch.cat(corners, -1), torch.arange(rows.numel(), device=rows.device).reshape(rows.shape)


@preview
def _drawn(mesh: Mesh) -> Tensor:
    """The mesh in a notebook."""
    return SmoothRenderer(200, background=1.0)(mesh, Camera.look_at((1.5, 1.2, 2.2), fov=45.0)).rgb
