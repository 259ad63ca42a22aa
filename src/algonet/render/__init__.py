"""A C-infinity mesh renderer: meshes, cameras, light, the smooth rasteriser, and fitting."""

from .cameras import Camera
from .coverage import EdgeProduct, EuclideanCoverage, FilteredCoverage
from .fitting import CameraFit, MeshFit, MeshWeights, fit_camera, fit_mesh, rotation_error
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
    silhouette_iou,
)
from .meshes import Mesh
from .modules import Rendering, SmoothRenderer
from .procedural import box, cylinder, extrusion, icosphere, torus
from .settings import Raster
from .textures import sample_texture

__all__ = [
    "AmbientLight",
    "BlinnPhong",
    "Camera",
    "CameraFit",
    "DirectionalLight",
    "EdgeProduct",
    "EuclideanCoverage",
    "FilteredCoverage",
    "Lambert",
    "Mesh",
    "MeshFit",
    "MeshWeights",
    "PointLight",
    "Raster",
    "Rendering",
    "SmoothRenderer",
    "Topology",
    "box",
    "cylinder",
    "edge_length_loss",
    "extrusion",
    "fit_camera",
    "fit_mesh",
    "flatten_loss",
    "icosphere",
    "image_l1",
    "image_l2",
    "laplacian_loss",
    "render_attributes",
    "render_hard",
    "rotation_error",
    "sample_texture",
    "silhouette_iou",
    "torus",
]
