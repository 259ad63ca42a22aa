"""Meshes with a texture as files: OBJ with its material and picture beside it, or GLB with all in one."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .meshes import Mesh

#: Formats that hold a texture; the others get its colours at the vertices.
TEXTURED = (".obj", ".glb")


def textured_files(mesh: Mesh, path: Path) -> dict[Path, bytes]:
    """Names and contents of the files of a mesh that has `texture` and `uv`; NAME.obj comes with NAME.mtl and NAME.png."""
    import torch
    from PIL import Image

    assert mesh.texture is not None
    assert mesh.uv is not None
    rows = (mesh.uv_faces if mesh.uv_faces is not None else mesh.faces).long()
    # Files have one place and one uv per vertex: each pair that occurs becomes one
    pairs, index = torch.stack([mesh.faces.long().flatten(), rows.flatten()], -1).unique(dim=0, return_inverse=True)
    vertices = mesh.vertices.detach()[pairs[:, 0]].double().cpu().numpy()
    uv = mesh.uv.detach()[pairs[:, 1]].double().cpu().numpy()
    faces = index.reshape(-1, 3).cpu().numpy()
    pixels = (mesh.texture.detach().clamp(0, 1) * 255).round().byte().cpu().numpy()
    picture = Image.fromarray(pixels)
    return {path.with_name(name): content for name, content in _files(vertices, faces, uv, picture, path).items()}


def _files(vertices: Any, faces: Any, uv: Any, picture: Any, path: Path) -> dict[str, bytes]:
    """Names and contents, the mesh last: whoever waits for it finds the rest there."""
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
