"""A C-infinity mesh renderer: meshes, cameras, light, the smooth rasteriser, and fitting."""

from .cameras import Camera
from .coverage import Coverage, EdgeProduct, EuclideanCoverage, FilteredCoverage
from .fitting import (
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
from .functional import render_attributes
from .hard import render_hard
from .lights import AmbientLight, BlinnPhong, DirectionalLight, Lambert, PointLight
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
    "laplacian_loss",
    "mesh_quality",
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
