"""A C-infinity mesh renderer: meshes, cameras, light, the smooth rasteriser, and fitting."""

from .cameras import Camera
from .coverage import EdgeProduct, EuclideanCoverage, FilteredCoverage
from .functional import render_attributes
from .hard import render_hard
from .lights import AmbientLight, BlinnPhong, DirectionalLight, Lambert, PointLight
from .meshes import Mesh
from .modules import Rendering, SmoothRenderer
from .procedural import box, cylinder, extrusion, icosphere, torus
from .settings import Raster
from .textures import sample_texture

__all__ = [
    "AmbientLight",
    "BlinnPhong",
    "Camera",
    "DirectionalLight",
    "EdgeProduct",
    "EuclideanCoverage",
    "FilteredCoverage",
    "Lambert",
    "Mesh",
    "PointLight",
    "Raster",
    "Rendering",
    "SmoothRenderer",
    "box",
    "cylinder",
    "extrusion",
    "icosphere",
    "render_attributes",
    "render_hard",
    "sample_texture",
    "torus",
]
