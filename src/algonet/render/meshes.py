"""Triangle meshes: vertices that learn, faces that stay."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from algonet.core import tracing
from algonet.core.checks import as_tensor, check_spec, widened
from algonet.core.files import write_files
from algonet.core.pictures import png_bytes

from .mesh_files import encode_mesh, read_mesh
from .operation import NORMALS
from .settings import NormalSettings
from .vectors import edges_of, face_areas, normalise, normalise_area, split_edges

#: Texture coordinates beyond it have no digits left for texels.
MOST_UV = 1e6
#: Colours lie in [0, 1]. What is far brighter than any light makes it was meant to be 0 to 255.
TOO_BRIGHT = 16.0
#: So many numbers of a texture are looked at.
LOOKS = 4096


@dataclass(frozen=True, eq=False)
class Mesh:
    """Vertices (V, 3) or (B, V, 3) and faces (F, 3), counter-clockwise seen from outside; what colours it is optional.

    `vertex_colors` (*B, V, C) or `face_colors` (*B, F, C), with C = 3, in [0, 1]; or a `texture` (h, w, C) with `uv`
    (N, 2), u to the right and v *up* from the lower left corner, looked up by `uv_faces` (F, 3) (default: `faces`). It is
    `seamless` if uv go on across every edge, which is looked up in `uv_faces` where nothing is said.
    `normals` (*B, V, 3) replace the ones computed from the faces. Frozen: `mesh.replace(vertices=...)` gives a new one.

    >>> mesh = Mesh(torch.tensor([[0.0, 0.0, 0.0], [1.0, 0.0, 0.0], [0.0, 1.0, 0.0]]), torch.tensor([[0, 1, 2]]))
    >>> mesh.face_normals()
    tensor([[0., 0., 1.]])
    """

    vertices: Tensor
    faces: Tensor
    vertex_colors: Tensor | None = None
    face_colors: Tensor | None = None
    uv: Tensor | None = None
    uv_faces: Tensor | None = None
    texture: Tensor | None = None
    normals: Tensor | None = None
    seamless: bool | None = None

    def __post_init__(self):
        for name, value in vars(self).items():
            if hasattr(value, "__array__") and not isinstance(value, Tensor):
                object.__setattr__(self, name, as_tensor(value))
        check_mesh("Mesh", self.vertices, self.faces)
        if self.texture is not None and self.uv is None:
            raise ValueError("Mesh: a `texture` needs `uv` coordinates (N, 2); give both.")
        for name, count in (("vertex_colors", self.vertices.shape[-2]), ("face_colors", len(self.faces))):
            colors = getattr(self, name)
            if colors is not None and (colors.dim() < 2 or colors.shape[-2] != count):
                raise ValueError(f"Mesh: `{name}` must be (*batch, {count}, C), got {tuple(colors.shape)}.")
        for name in ("vertex_colors", "face_colors", "texture"):
            if getattr(self, name) is not None:
                check_colors(f"Mesh: `{name}`", getattr(self, name))
        if self.uv is not None:
            if self.uv.shape[-1] != 2:
                raise ValueError(f"Mesh: `uv` must be (N, 2), got {tuple(self.uv.shape)}.")
            if tracing.readable(self.uv) and not bool((self.uv.detach().abs() <= MOST_UV).all()):
                raise ValueError(f"Mesh: `uv` must be numbers of at most {MOST_UV:g}; [0, 1] is the whole texture.")
            check_faces("Mesh: `uv_faces`", self.uv_faces if self.uv_faces is not None else self.faces, len(self.uv))
        if self.seamless is None and self.texture is not None:
            object.__setattr__(self, "seamless", self.uv_faces is None or _is_seamless(self.faces, self.uv_faces))
        if self.normals is not None and self.normals.shape[-2:] != self.vertices.shape[-2:]:
            raise ValueError(
                f"Mesh: `normals` must be like vertices {tuple(self.vertices.shape)}, got {tuple(self.normals.shape)}."
            )

    @staticmethod
    def load(path: str | os.PathLike[str]) -> Mesh:
        """Read a mesh file (OBJ, PLY, STL, OFF, GLB, ...) with its colours or texture; raises ValueError naming the file."""
        return read_mesh(Path(path), Mesh)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write a single mesh, by the name's ending (.obj, .ply, .stl, .off, .glb), to a temporary name first.

        A texture goes along into .obj (as NAME.mtl and NAME.png beside it) and .glb, colours into .obj, .ply and .glb; those of
        faces stay as they are in .ply and become colours of vertices, means of the faces around, in the others.
        """
        write_files(mesh_files(self, Path(path)))

    def replace(self, **changes) -> Mesh:
        """A new mesh with some fields changed; new vertices drop the old normals unless new ones are given."""
        if "vertices" in changes and "normals" not in changes:
            changes["normals"] = None
        if changes.keys() & {"faces", "uv_faces"} and "seamless" not in changes:
            changes["seamless"] = None
        return dataclasses.replace(self, **changes)

    def __repr__(self) -> str:
        held = [f.name for f in dataclasses.fields(self) if isinstance(getattr(self, f.name), Tensor)]
        more = "".join(f", {name}" for name in held if name not in ("vertices", "faces"))
        return f"Mesh({self.vertices.shape[-2]} vertices, {len(self.faces)} faces{more})"

    def _repr_png_(self) -> bytes | None:
        """In a notebook: the mesh, seen a little from above."""
        if self.vertices.dim() != 2 or not len(self.faces) or not _PREVIEWS:
            return None
        with torch.no_grad():
            return png_bytes(_PREVIEWS[-1](self.normalised().to("cpu")))

    def to(self, *args, **kwargs) -> Mesh:
        """The mesh with its tensors moved (and floating ones cast), as by `Tensor.to`."""
        changes = {}
        for f in dataclasses.fields(self):
            tensor = getattr(self, f.name)
            if isinstance(tensor, Tensor):
                moved = tensor.to(*args, **kwargs)
                changes[f.name] = moved if tensor.is_floating_point() else tensor.to(moved.device)
        return dataclasses.replace(self, **changes)

    def face_normals(self) -> Tensor:
        """Unit normals (*B, F, 3) of the faces, pointing outside; zero for faces without area."""
        return normalise_area(*face_areas(self.vertices, self.faces))

    def vertex_normals(self, *, deterministic: bool | None = None) -> Tensor:
        """Unit normals (*B, V, 3): of the mesh if it has its own, else the mean of the faces', weighted by area.

        `deterministic` makes a GPU's sums reproducible (default: torch's own setting).
        """
        if self.normals is not None:
            return normalise(self.normals)
        dtype = self.vertices.dtype
        wide = widened(self.vertices)
        fixed = torch.are_deterministic_algorithms_enabled() if deterministic is None else bool(deterministic)
        return NORMALS([wide, self.faces], NormalSettings(fixed))[0].to(dtype)

    def edges(self) -> Tensor:
        """Each edge once, as a pair of vertices (E, 2)."""
        return edges_of(self.faces)[0]

    def is_closed(self) -> bool:
        """Whether every edge has as many faces on one side as on the other: the surface has no border, and one outside.

        Vertices at the same place are one.

        >>> from algonet.render import icosphere
        >>> ball = icosphere(1)
        >>> ball.is_closed(), ball.replace(faces=ball.faces[1:]).is_closed()
        (True, False)
        """
        places = self.vertices.detach().cpu().reshape(-1, *self.vertices.shape[-2:])[0]
        corners = places.unique(dim=0, return_inverse=True)[1][self.faces.cpu().long()]
        edges, index, _ = edges_of(corners)
        turns = torch.where(corners < corners.roll(-1, 1), 1, -1).T.flatten()
        return not turns.new_zeros(len(edges)).index_add(0, index, turns).any()

    def subdivided(self) -> Mesh:
        """Each face cut into four in place: the same surface, finer. Vertex colours are interpolated, others kept."""
        vertices, faces = split_edges(self.vertices, self.faces)
        changes: dict = {"vertices": vertices, "faces": faces}
        for name in ("vertex_colors", "normals"):
            if getattr(self, name) is not None:
                changes[name] = split_edges(getattr(self, name), self.faces)[0]
        if self.face_colors is not None:
            changes["face_colors"] = torch.cat([self.face_colors] * 4, -2)
        if self.uv is not None:
            uv_faces = self.uv_faces if self.uv_faces is not None else self.faces
            changes["uv"], changes["uv_faces"] = split_edges(self.uv, uv_faces)
        return self.replace(**changes)

    def normalised(self, radius: float = 1.0) -> Mesh:
        """Moved to the middle of its bounding box and scaled so that it just fits a ball of `radius`."""
        low, high = self.vertices.amin(-2, keepdim=True), self.vertices.amax(-2, keepdim=True)
        centred = self.vertices - (low + high) / 2
        size = centred.norm(dim=-1).amax(-1)[..., None, None]
        return self.replace(vertices=centred * (radius / size.clamp_min(1e-12)), normals=self.normals)


def check_mesh(where: str, vertices: Tensor, faces: Tensor) -> None:
    """Raise unless these are floating vertices (*B, V, 3), finite where that can be seen for free, and faces in range."""
    check_spec(where, "vertices", vertices, "*batch V 3")
    if vertices.shape[-2] == 0:
        raise ValueError(f"{where}: the mesh is empty: `vertices` has shape {tuple(vertices.shape)}.")
    check_faces(f"{where}: `faces`", faces, vertices.shape[-2])
    if len(faces) == 0:
        raise ValueError(f"{where}: the mesh is empty: `faces` has shape {tuple(faces.shape)}.")


def check_faces(where: str, faces: Tensor, count: int) -> None:
    """Raise unless `faces` are (F, 3) integers below `count`; values are looked at on the CPU only."""
    integer = isinstance(faces, Tensor) and faces.dtype in (torch.int32, torch.int64)
    if not integer or faces.shape[1:] != (3,):
        got = f"{faces.dtype} {tuple(faces.shape)}" if isinstance(faces, Tensor) else type(faces).__name__
        raise (ValueError if integer else TypeError)(f"{where} must be an int32 or int64 tensor (F, 3), got {got}.")
    if faces.device.type == "cpu" and not tracing.compiling() and faces.numel():
        low, high = int(faces.min()), int(faces.max())
        if low < 0 or high >= count:
            raise ValueError(
                f"{where} must index {count} vertices (0 to {count - 1}), got values from {low} to {high}."
            )


def check_colors(where: str, colors: Tensor) -> None:
    """Raise where colours are bytes, or numbers up to 255; values are checked where that is free and they are not learned."""
    if not isinstance(colors, Tensor) or not colors.is_floating_point():
        got = colors.dtype if isinstance(colors, Tensor) else type(colors).__name__
        raise TypeError(f"{where} must be a floating tensor with values in [0, 1], got {got}; divide bytes by 255.")
    if colors.requires_grad or not colors.numel() or not tracing.readable(colors):
        return
    some = colors.reshape(-1)[:: max(1, colors.numel() // LOOKS)]
    if float(some.max()) > TOO_BRIGHT:
        raise ValueError(f"{where} must lie in [0, 1], got values up to {float(some.max()):g}; divide by 255.")


def check_mesh_given(where: str, mesh: object) -> None:
    """Raise for what is no mesh, such as the name of a file."""
    if not isinstance(mesh, Mesh):
        hint = f"; Mesh.load({mesh!r}) reads a file" if isinstance(mesh, (str, os.PathLike)) else ""
        raise TypeError(f"{where}: the first argument must be a Mesh, got {type(mesh).__name__}{hint}.")


def mesh_files(mesh: Mesh, path: Path) -> dict[Path, bytes]:
    """Names and contents of the files that `Mesh.save` writes."""
    fields = {f.name: getattr(mesh, f.name) for f in dataclasses.fields(mesh)}
    return encode_mesh(path, {name: t for name, t in fields.items() if isinstance(t, Tensor)})


#: What draws meshes in notebooks.
_PREVIEWS: list[Callable[[Mesh], Tensor]] = []


def preview(draw: Callable[[Mesh], Tensor]) -> Callable[[Mesh], Tensor]:
    """Decorates the function that draws a mesh as a picture (H, W, 3): renderers stand above meshes, which cannot ask them."""
    _PREVIEWS.append(draw)
    return draw


def _is_seamless(faces: Tensor, uv_faces: Tensor) -> bool:
    """Whether every edge has the same two rows of uv on all its faces. False where that cannot be read."""
    if tracing.compiling() or tracing.faking() or tracing.wrapped(faces):
        return False
    faces, rows = faces.detach().cpu(), uv_faces.detach().cpu().long()
    edges, index, _ = edges_of(faces)
    turned = (faces > faces.roll(-1, 1)).T.reshape(-1, 1)
    places = torch.stack([rows, rows.roll(-1, 1)], -1).transpose(0, 1).reshape(-1, 2)
    places = torch.where(turned, places.flip(-1), places)
    first = torch.zeros_like(edges, dtype=torch.long)
    first[index] = places
    return torch.equal(first[index], places)
