"""Meshes as files, by trimesh: what is read is checked, and a broken file gives one line that names it."""

from __future__ import annotations

import io
import os
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from algonet.core.files import read_file
from algonet.core.memory import check_memory
from algonet.core.pictures import MOST_PIXELS, to_bytes

from .texture_files import TEXTURED, textured_files

T = TypeVar("T")

#: What is read. Not archives: a small one may hold terabytes.
FORMATS = ("obj", "ply", "stl", "off", "glb", "gltf")
#: What is written.
WRITTEN = ("obj", "ply", "stl", "off", "glb")
#: How many times its size a file may take while it is parsed, at most: text, numbers in double precision, faces in 64 bits.
PARSING = 12
#: No material, texture or buffer larger than this is read.
MOST_BESIDE = 2**28
#: Coordinates beyond this, in a file, are refused: the squares that lengths are made of would not fit float32.
_MOST = 1e18


def read_mesh(path: Path, make: Callable[..., T]) -> T:
    """What `make` makes of the fields in a file; raises ValueError ("Mesh.load: PATH: REASON") where there is no mesh."""
    import trimesh
    from PIL import Image

    ending = path.suffix.lstrip(".").lower()
    if os.path.isfile(path) and ending not in FORMATS:
        raise ValueError(f"Mesh.load: {path}: meshes are read from {', '.join(f'.{name}' for name in FORMATS)} files.")
    try:
        # From memory: a reader that believes a false length in the file would otherwise allocate that much
        content = read_file(path)
    except OSError as error:
        raise ValueError(f"Mesh.load: {error}") from None
    try:
        check_memory("Mesh.load", f"{path}: {len(content)} bytes", PARSING * len(content))
        with warnings.catch_warnings():
            # What trimesh and Pillow warn of is either checked below or does no harm
            warnings.simplefilter("ignore")
            # Said before a picture is decoded; trimesh then goes on without it
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            loaded = trimesh.load(
                io.BytesIO(content), file_type=ending, resolver=_beside(path), force="mesh", process=False
            )
            return make(**_checked(loaded, shared=ending != "stl"))
    except Exception as error:  # trimesh raises whatever the parser of that format raised
        raise ValueError(f"Mesh.load: {path}: not readable as a mesh: {_reason(error)}") from error


def _beside(path: Path) -> Any:
    """What finds materials, textures and buffers that a mesh file names: ordinary files in its folder and below, no others."""
    from trimesh.resolvers import Resolver

    folder = path.resolve().parent

    class Beside(Resolver):
        def __init__(self) -> None:
            pass

        def get(self, name: str) -> bytes:
            found = (folder / name).resolve()
            if not found.is_relative_to(folder):
                raise ValueError(f"{name[:100]!r} lies outside the folder of {path.name}")
            return read_file(found, MOST_BESIDE)

        def keys(self) -> list[str]:
            return []

        def write(self, name: str, data: Any) -> None:
            raise ValueError(f"{path.name}: reading writes nothing")

        def namespaced(self, namespace: str) -> Any:
            raise ValueError(f"{path.name}: there are no folders inside a mesh")

    return Beside()


def _checked(loaded: Any, *, shared: bool) -> dict[str, Tensor]:
    """The fields of a trimesh object; raises ValueError if it is none that can be used.

    In a format whose faces cannot have vertices in common (not `shared`), equal ones are made one.
    """
    vertices, faces = getattr(loaded, "vertices", None), getattr(loaded, "faces", None)
    if vertices is None or faces is None or len(vertices) == 0 or len(faces) == 0:
        raise ValueError("it holds no triangles.")
    vertices, faces = np.asarray(vertices, dtype=np.float32), np.asarray(faces, dtype=np.int64)
    if not (np.abs(vertices) < _MOST).all():
        raise ValueError("it has vertices that are not finite.")
    if faces.min() < 0 or faces.max() >= len(vertices):
        raise ValueError("it has faces whose vertices do not exist.")
    looks = _looks(loaded)
    if "uv" in looks:
        looks["uv_faces"] = torch.from_numpy(faces)
    if "uv" in looks or not (shared or "vertex_colors" in looks):
        # Files repeat a vertex for each uv it has: without that the surface is whole, and its normals are smooth, again
        vertices, index = np.unique(vertices, axis=0, return_inverse=True)
        faces = index.reshape(-1)[faces]
    return {"vertices": torch.from_numpy(vertices), "faces": torch.from_numpy(faces), **looks}


def _looks(loaded) -> dict[str, Tensor]:
    """Colours or texture of a trimesh object, as fields of `Mesh`."""
    visual = getattr(loaded, "visual", None)
    kind = getattr(visual, "kind", None)
    if kind == "vertex":
        return {"vertex_colors": _unit_colors(visual.vertex_colors)}  # pyright: ignore[reportOptionalMemberAccess]
    if kind == "face":
        return {"face_colors": _unit_colors(visual.face_colors)}  # pyright: ignore[reportOptionalMemberAccess]
    if kind != "texture":
        return {}
    uv, looks = getattr(visual, "uv", None), {}
    if uv is not None:
        looks["uv"] = torch.from_numpy(np.asarray(uv, dtype=np.float32).copy())
    material = getattr(visual, "material", None)
    image = getattr(material, "image", None)
    if image is None:
        image = getattr(material, "baseColorTexture", None)
    if uv is not None and image is not None and not _made_up(image):
        if image.width * image.height > MOST_PIXELS:
            raise ValueError(
                f"a texture of {image.width} x {image.height} pixels; at most {MOST_PIXELS} in all can be used."
            )
        looks["texture"] = _unit_colors(np.asarray(image.convert("RGB")))
    elif (color := _color_of(material)) is not None:
        looks["face_colors"] = _unit_colors(color).repeat(len(loaded.faces), 1)
    return looks


def _color_of(material: Any) -> Any:
    """The one colour that a material gives to its faces (Kd of an OBJ's, the base colour of a GLB's), if the file says any."""
    from trimesh.visual.color import DEFAULT_COLOR

    color = getattr(material, "diffuse", None)
    if color is None:
        color = getattr(material, "baseColorFactor", None)
    return None if color is None or np.array_equal(color, DEFAULT_COLOR) else color


def _made_up(image: Any) -> bool:
    """Whether this is the four grey pixels that trimesh gives to uv for which the file has no picture."""
    from trimesh.visual.material import empty_material

    grey = empty_material().image
    return image.size == grey.size and image.mode == grey.mode and image.tobytes() == grey.tobytes()


def _unit_colors(colors) -> Tensor:
    return torch.from_numpy(np.asarray(colors)[..., :3].astype(np.float32) / 255)


def encode_mesh(path: Path, fields: Mapping[str, Tensor]) -> dict[Path, bytes]:
    """Names and contents of the files that hold a mesh of these fields, `path` and what a texture needs beside it."""
    import trimesh

    present = {name: t.detach().cpu() for name, t in fields.items()}
    vertices, faces = present["vertices"], present["faces"]
    if vertices.dim() != 2:
        raise ValueError(f"Mesh.save: one mesh at a time: vertices have shape {tuple(vertices.shape)}; pick an item.")
    ending = path.suffix.lstrip(".").lower()
    if ending not in WRITTEN:
        raise ValueError(
            f"Mesh.save: {path}: meshes are written as {', '.join(f'.{name}' for name in WRITTEN)}; choose one of them."
        )
    if "texture" in present and path.suffix.lower() in TEXTURED:
        return textured_files(path, vertices, faces, present["uv"], present.get("uv_faces", faces), present["texture"])
    colors = {name: to_bytes(present[name]) for name in ("vertex_colors", "face_colors") if name in present}
    try:
        data = trimesh.Trimesh(vertices.double().numpy(), faces.numpy(), process=False, **colors).export(
            file_type=ending
        )
    except Exception as error:
        raise ValueError(f"Mesh.save: {path}: cannot be written in this format: {_reason(error)}") from error
    return {path: data.encode() if isinstance(data, str) else data}


def _reason(error: Exception) -> str:
    return " ".join(str(error).split())[:200] or type(error).__name__
