"""A C-infinity mesh renderer: meshes, cameras, light, the smooth rasteriser, and fitting."""

from .cameras import Camera
from .coverage import EdgeProduct, EuclideanCoverage, FilteredCoverage
from .functional import render_attributes
from .meshes import Mesh
from .procedural import box, cylinder, extrusion, icosphere, torus
from .settings import Raster

__all__ = [
    "Camera",
    "EdgeProduct",
    "EuclideanCoverage",
    "FilteredCoverage",
    "Mesh",
    "Raster",
    "box",
    "cylinder",
    "extrusion",
    "icosphere",
    "render_attributes",
    "torus",
]
