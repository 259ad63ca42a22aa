"""Meshes as files, by trimesh: what is read is checked, and a broken file gives one line that names it."""

from __future__ import annotations

import io
import json
import os
import re
import struct
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from algonet.core.extras import require
from algonet.core.files import read_file
from algonet.core.memory import check_memory
from algonet.core.pictures import MOST_PIXELS, to_bytes

T = TypeVar("T")

#: What is read. Not archives: a small one may hold terabytes.
FORMATS = ("obj", "ply", "stl", "off", "glb", "gltf")
#: What is written.
WRITTEN = ("obj", "ply", "stl", "off", "glb")
#: Formats that hold a texture; the others get its colours at the vertices.
TEXTURED = ("obj", "glb")
#: How many times its size a file may take while it is parsed, at most: text, numbers in double precision, faces in 64 bits.
PARSING = 12
#: Materials, textures and buffers of a mesh may have this many bytes in all.
MOST_BESIDE = 2**28
#: Materials of an OBJ, nodes of a glTF and primitives of all its nodes: each takes trimesh a millisecond.
MOST_PARTS = 2**13
#: A glTF may name as many elements, over all accessors and primitives of nodes, as it has bytes, or this many: more of them are
#: zeros, or the same bytes again and again.
FEW_ELEMENTS = 2**22
#: Coordinates beyond this, in a file, are refused: the squares that lengths are made of would not fit float32.
_MOST = 1e18
#: Texture coordinates beyond this are no place on a picture.
_MOST_UV = 1e6
_INDEX = rb"[+-]?0*[1-9]\d*+"
_GAP = rb"(?:[ \t]|\\\r?\n)"
#: A face of an OBJ that is none: something else than indices, which begin with 1 or count back from -1.
_BAD_FACE = re.compile(rb"^f(?!(?:%s++%s(?:/(?:%s)?){0,2})*+%s*+\r?(?:#.*)?$).*" % (_GAP, _INDEX, _INDEX, _GAP), re.M)


def read_mesh(path: Path, make: Callable[..., T]) -> T:
    """What `make` makes of the fields in a file; raises ValueError ("Mesh.load: PATH: REASON") where there is no mesh."""
    require("trimesh", "PIL")
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
            resolver = _beside(path)
            content = _checked_content(content, ending, resolver)
            scene: Any = trimesh.load(
                io.BytesIO(content), file_type=ending, resolver=resolver, force="scene", process=False
            )
            _check_textures(scene)
            meshes: list[Any] = [part for part in scene.dump() if isinstance(part, trimesh.Trimesh)]
            return make(**_checked(trimesh.util.concatenate(meshes), shared=ending != "stl"))
    except Exception as error:  # trimesh raises whatever the parser of that format raised
        raise ValueError(f"Mesh.load: {path}: not readable as a mesh: {_reason(error)}") from error


def _beside(path: Path) -> Any:
    """What finds materials, textures and buffers that a mesh file names: ordinary files in its folder and below, no others.

    Each is read once, and all together have `MOST_BESIDE` bytes.
    """
    from trimesh.resolvers import Resolver

    folder = path.resolve().parent
    found: dict[Path, bytes] = {}

    class Beside(Resolver):
        def __init__(self) -> None:
            pass

        def get(self, name: str) -> bytes:
            place = (folder / name).resolve()
            if not place.is_relative_to(folder):
                raise ValueError(f"{name[:100]!r} lies outside the folder of {path.name}")
            if place not in found:
                content = read_file(place, MOST_BESIDE - sum(map(len, found.values())))
                found[place] = _as_utf8(content) if place.suffix.lower() == ".mtl" else content
            return found[place]

        def keys(self) -> list[str]:
            return []

        def write(self, name: str, data: Any) -> None:
            raise ValueError(f"{path.name}: reading writes nothing")

        def namespaced(self, namespace: str) -> Any:
            raise ValueError(f"{path.name}: there are no folders inside a mesh")

    return Beside()


def _checked_content(content: bytes, ending: str, resolver: Any) -> bytes:
    """The content as trimesh should get it; raises ValueError for what trimesh would believe or misread."""
    if ending in ("obj", "off"):
        content = _as_utf8(content)
    if ending == "obj":
        if (bad := _BAD_FACE.search(content)) is not None:
            line = content.count(b"\n", 0, bad.start()) + 1
            raise ValueError(
                f"line {line}: {bad[0][:40].decode(errors='replace').strip()!r}: wanted indices of vertices, from 1 on."
            )
        _check_parts("materials", len(set(re.findall(rb"^usemtl .*", content, re.M))))
    if ending == "ply":
        counts = map(int, re.findall(rb"^element[ \t]+\S+[ \t]+(\d+)", content.partition(b"end_header")[0], re.M))
        _check_elements(sum(counts), len(content))
    if ending == "glb":
        length = struct.unpack("<I", content[12:16])[0] if len(content) >= 20 else 0
        _check_gltf(json.loads(content[20 : 20 + length]), len(content), resolver)
    if ending == "gltf":
        _check_gltf(json.loads(content), len(content), resolver)
    return content


def _as_utf8(content: bytes) -> bytes:
    """Text in UTF-8: any other that begins with ASCII is taken for Latin-1, which matters in comments and names alone."""
    if b"\0" in content:
        raise ValueError("it is no text, which files of this ending are; has it the ending of its format?")
    try:
        content.decode()
        return content
    except UnicodeDecodeError:
        return content.decode("latin-1").encode()


def _check_parts(what: str, count: int) -> None:
    if count > MOST_PARTS:
        raise ValueError(f"it has {count} {what}; at most {MOST_PARTS} can be read.")


def _check_elements(count: int, size: int, few: int = 0) -> None:
    if count > max(size, few):
        raise ValueError(f"it names {count} elements in {size} bytes; at most {max(size, few)} can be read.")


def _check_gltf(header: Any, size: int, resolver: Any) -> None:
    """Raise ValueError where the header of a glTF file of `size` bytes names more than the file can hold."""
    if not isinstance(header, dict):
        raise ValueError("its header is no JSON object.")
    for uri in {buffer.get("uri", "data:") for buffer in header.get("buffers", [])}:
        size += 0 if uri.startswith("data:") else len(resolver.get(uri))
    accessors, meshes, nodes = (header.get(name, []) for name in ("accessors", "meshes", "nodes"))
    counts = [accessor["count"] for accessor in accessors]
    if not all(type(count) is int and count >= 0 for count in counts):
        raise ValueError("it has an accessor whose `count` is no number of elements.")
    elements = []
    for mesh in meshes:
        used = [
            i
            for part in mesh["primitives"]
            for i in (*part["attributes"].values(), part.get("indices"))
            if i is not None
        ]
        if any("bufferView" not in accessors[i] or "sparse" in accessors[i] for i in used):
            raise ValueError("it is compressed or sparse (an accessor without `bufferView`); save it without that.")
        elements.append(sum(counts[i] for i in used))
    instances = [node["mesh"] for node in nodes if "mesh" in node]
    _check_parts("nodes", len(nodes))
    _check_parts("primitives", sum(len(meshes[i]["primitives"]) for i in [*instances, *range(len(meshes))]))
    _check_elements(sum(counts) + sum(elements) + sum(elements[i] for i in instances), size, FEW_ELEMENTS)


def _check_textures(scene: Any) -> None:
    """Raise ValueError where all textures together have more than `MOST_PIXELS`: trimesh makes one of them."""
    images = {id(image): image for part in scene.geometry.values() if (image := _image_of(part)) is not None}
    pixels = sum(image.width * image.height for image in images.values())
    if pixels > MOST_PIXELS:
        raise ValueError(f"its textures have {pixels} pixels; at most {MOST_PIXELS} in all can be used.")


def _image_of(part: Any) -> Any:
    """The picture on a trimesh object, or None."""
    return _either(getattr(getattr(part, "visual", None), "material", None), "image", "baseColorTexture")


def _either(material: Any, *names: str) -> Any:
    """The first of a material's attributes that there is."""
    return next((found for name in names if (found := getattr(material, name, None)) is not None), None)


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
        if not (np.abs(uv) < _MOST_UV).all():
            raise ValueError(f"it has texture coordinates that are not finite, or beyond {_MOST_UV:g}.")
    material, image = getattr(visual, "material", None), _image_of(loaded)
    if uv is not None and image is not None and not _made_up(image):
        looks["texture"] = _unit_colors(np.asarray(image.convert("RGB")))
    elif (color := _color_of(material)) is not None:
        looks["face_colors"] = _unit_colors(color).repeat(len(loaded.faces), 1)
    return looks


def _color_of(material: Any) -> Any:
    """The one colour that a material gives to its faces (Kd of an OBJ's, the base colour of a GLB's), if the file says any."""
    from trimesh.visual.color import DEFAULT_COLOR

    color = _either(material, "diffuse", "baseColorFactor")
    return None if color is None or np.array_equal(color, DEFAULT_COLOR) else color


def _made_up(image: Any) -> bool:
    """Whether this is the four grey pixels that trimesh gives to uv for which the file has no picture."""
    from trimesh.visual.material import empty_material

    grey: Any = empty_material().image
    return image.size == grey.size and image.mode == grey.mode and image.tobytes() == grey.tobytes()


def _unit_colors(colors) -> Tensor:
    found = np.asarray(colors)[..., :3].astype(np.float32)
    found /= 255  # in place: a texture of MOST_PIXELS takes three quarters of a gigabyte
    return torch.from_numpy(found)


def encode_mesh(path: Path, fields: Mapping[str, Tensor]) -> dict[Path, bytes]:
    """Names and contents of the files that hold a mesh of these fields, `path` and what a texture needs beside it."""
    require("trimesh")
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
    if "texture" in present and ending in TEXTURED:
        return _textured_files(path, vertices, faces, present["uv"], present.get("uv_faces", faces), present["texture"])
    colors: dict[str, Any] = {
        name: to_bytes(present[name]) for name in ("vertex_colors", "face_colors") if name in present
    }
    try:
        data: Any = trimesh.Trimesh(vertices.double().numpy(), faces.numpy(), process=False, **colors).export(
            file_type=ending
        )
    except Exception as error:
        raise ValueError(f"Mesh.save: {path}: cannot be written in this format: {_reason(error)}") from error
    return {path: data.encode() if isinstance(data, str) else data}


def _textured_files(
    path: Path, vertices: Tensor, faces: Tensor, uv: Tensor, uv_faces: Tensor, texture: Tensor
) -> dict[Path, bytes]:
    """Names and contents of the files of a mesh with a texture; NAME.obj comes with NAME.mtl and NAME.png."""
    require("PIL")
    from PIL import Image

    # Files have one place and one uv per vertex: each pair that occurs becomes one
    pairs, index = torch.stack([faces.long().flatten(), uv_faces.long().flatten()], -1).unique(
        dim=0, return_inverse=True
    )
    places, uv_places = vertices[pairs[:, 0]].double().numpy(), uv[pairs[:, 1]].double().numpy()
    picture = Image.fromarray(to_bytes(texture))
    contents = _exported(places, index.reshape(-1, 3).numpy(), uv_places, picture, path)
    return {path.with_name(name): content for name, content in contents.items()}


def _exported(vertices: Any, faces: Any, uv: Any, picture: Any, path: Path) -> dict[str, bytes]:
    """Names and contents, the mesh last: when it is there, its texture is, too."""
    require("trimesh")
    import trimesh
    from trimesh.exchange.obj import export_obj
    from trimesh.visual.material import PBRMaterial, SimpleMaterial
    from trimesh.visual.texture import TextureVisuals

    binary = path.suffix.lower() == ".glb"
    if binary:
        material: Any = PBRMaterial(baseColorTexture=picture, metallicFactor=0.0, roughnessFactor=1.0)
    else:
        material = SimpleMaterial(image=picture, diffuse=[255, 255, 255, 255], name=path.stem)
    visual = TextureVisuals(uv=uv, material=material)
    whole: Any = trimesh.Trimesh(vertices, faces, visual=visual, process=False)
    if binary:
        return {path.name: whole.export(file_type="glb")}
    text, beside = export_obj(whole, return_texture=True, include_normals=False, mtl_name=f"{path.stem}.mtl")
    return {**beside, path.name: text.encode()}


def _reason(error: Exception) -> str:
    return " ".join(str(error).split())[:200] or type(error).__name__
