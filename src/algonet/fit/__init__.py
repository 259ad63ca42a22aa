"""Fitting: meshes, textures and cameras to pictures, and fractals to a picture, from soft noise to sharp.

It stands on the renderer's and the fractals' public names; `algonet.render` and `algonet.ifs` hand these names on.
"""

from .alignment import rotation_error, rotation_matrix
from .ifs import FitPlan, FitResult, fit_ifs
from .ifs_search import Level, Search, ssim
from .large_steps import LargeSteps, LargeStepsState, smooth_over_mesh
from .mesh import MeshFit, MeshFitter, MeshWeights, fit_mesh
from .pose import CameraFit, Minima, PoseSearch, fit_camera
from .quality import MeshQuality, mesh_quality
from .remesh import Remesh, remesh
from .targets import Targets, blur, camera_to_world
from .texture import fit_texture

__all__ = [
    "CameraFit",
    "FitPlan",
    "FitResult",
    "LargeSteps",
    "LargeStepsState",
    "Level",
    "MeshFit",
    "MeshFitter",
    "MeshQuality",
    "MeshWeights",
    "Minima",
    "PoseSearch",
    "Remesh",
    "Search",
    "Targets",
    "blur",
    "camera_to_world",
    "fit_camera",
    "fit_ifs",
    "fit_mesh",
    "fit_texture",
    "mesh_quality",
    "remesh",
    "rotation_error",
    "rotation_matrix",
    "smooth_over_mesh",
    "ssim",
]
