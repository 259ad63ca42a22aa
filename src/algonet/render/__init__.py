"""A C-infinity mesh renderer: meshes, cameras, light, the smooth rasteriser, and fitting."""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING, Any

from .cameras import Camera
from .coverage import Coverage, EdgeProduct, EuclideanCoverage, FilteredCoverage
from .functional import render_attributes
from .hard import Fragments, interpolate, rasterize, render_hard
from .lights import AmbientLight, BlinnPhong, DirectionalLight, Headlight, Lambert, PointLight
from .losses import (
    Topology,
    edge_length_loss,
    flatten_loss,
    image_l1,
    image_l2,
    laplacian_loss,
    silhouette_iou_loss,
)
from .meshes import Mesh
from .modules import Rendering, SmoothRenderer
from .procedural import box, cylinder, extrusion, icosphere, torus
from .settings import Raster
from .textures import sample_pyramid, sample_texture

if TYPE_CHECKING:
    from algonet.fit import (
        CameraFit,
        LargeSteps,
        MeshFit,
        MeshFitter,
        MeshQuality,
        MeshWeights,
        PoseSearch,
        Remesh,
        Targets,
        camera_to_world,
        fit_camera,
        fit_mesh,
        fit_texture,
        mesh_quality,
        remesh,
        rotation_error,
        smooth_over_mesh,
    )

__all__ = [
    "AmbientLight",
    "BlinnPhong",
    "Camera",
    "CameraFit",
    "Coverage",
    "DirectionalLight",
    "EdgeProduct",
    "EuclideanCoverage",
    "FilteredCoverage",
    "Fragments",
    "Headlight",
    "Lambert",
    "LargeSteps",
    "Mesh",
    "MeshFit",
    "MeshFitter",
    "MeshQuality",
    "MeshWeights",
    "PointLight",
    "PoseSearch",
    "Raster",
    "Remesh",
    "Rendering",
    "SmoothRenderer",
    "Targets",
    "Topology",
    "box",
    "camera_to_world",
    "cylinder",
    "edge_length_loss",
    "extrusion",
    "fit_camera",
    "fit_mesh",
    "fit_texture",
    "flatten_loss",
    "icosphere",
    "image_l1",
    "image_l2",
    "interpolate",
    "laplacian_loss",
    "mesh_quality",
    "rasterize",
    "remesh",
    "render_attributes",
    "render_hard",
    "rotation_error",
    "sample_pyramid",
    "sample_texture",
    "silhouette_iou_loss",
    "smooth_over_mesh",
    "torus",
]


if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        """What `algonet.fit` defines, which stands on this package: loaded when first touched."""
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}", name=name, obj=sys.modules[__name__])
        return getattr(importlib.import_module("algonet.fit"), name)
