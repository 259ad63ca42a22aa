"""Fitting: a mesh to its pictures, a texture to a mesh, a camera to a picture, from soft noise to sharp."""

from .large_steps import LargeSteps, LargeStepsState, smooth_over_mesh
from .mesh import MeshFit, MeshFitter, MeshWeights, fit_mesh
from .pose import CameraFit, Minima, PoseSearch, fit_camera
from .quality import MeshQuality, mesh_quality
from .remesh import Remesh, remesh
from .rotations import rotation_error, rotation_matrix
from .targets import Targets, blur, camera_to_world
from .texture import fit_texture

__all__ = [
    "CameraFit",
    "LargeSteps",
    "LargeStepsState",
    "MeshFit",
    "MeshFitter",
    "MeshQuality",
    "MeshWeights",
    "Minima",
    "PoseSearch",
    "Remesh",
    "Targets",
    "blur",
    "camera_to_world",
    "fit_camera",
    "fit_mesh",
    "fit_texture",
    "mesh_quality",
    "remesh",
    "rotation_error",
    "rotation_matrix",
    "smooth_over_mesh",
]
