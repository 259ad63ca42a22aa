"""Meshes with a texture as files: OBJ with its material and picture beside it, or GLB with all in one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from algonet.core.extras import require
from algonet.core.pictures import to_bytes

#: Formats that hold a texture; the others get its colours at the vertices.
TEXTURED = (".obj", ".glb")


def textured_files(
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
    contents = _files(places, index.reshape(-1, 3).numpy(), uv_places, picture, path)
    return {path.with_name(name): content for name, content in contents.items()}


def _files(vertices: Any, faces: Any, uv: Any, picture: Any, path: Path) -> dict[str, bytes]:
    """Names and contents, the mesh last: when it is there, its texture is, too."""
    require("trimesh")
    import trimesh
    from trimesh.exchange.obj import export_obj
    from trimesh.visual.material import PBRMaterial, SimpleMaterial

    if path.suffix.lower() == ".glb":
        material: Any = PBRMaterial(baseColorTexture=picture, metallicFactor=0.0, roughnessFactor=1.0)
        visual = trimesh.visual.TextureVisuals(uv=uv, material=material)
        whole = trimesh.Trimesh(vertices, faces, visual=visual, process=False)
        return {path.name: whole.export(file_type="glb")}
    material = SimpleMaterial(image=picture, diffuse=[255, 255, 255, 255], name=path.stem)
    visual = trimesh.visual.TextureVisuals(uv=uv, material=material)
    whole = trimesh.Trimesh(vertices, faces, visual=visual, process=False)
    text, beside = export_obj(whole, return_texture=True, include_normals=False, mtl_name=f"{path.stem}.mtl")
    return {**beside, path.name: text.encode()}
