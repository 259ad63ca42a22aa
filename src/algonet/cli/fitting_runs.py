"""Runs of `algonet fit-mesh`: a folder with checkpoint, thumbnail, film, mesh, texture and report."""

from __future__ import annotations

import hashlib
import io
import json
import math
import time
import zipfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from algonet.cli.common import check_out
from algonet.core.files import write_bytes, write_files
from algonet.core.json_files import read_json
from algonet.core.pictures import gif_bytes, png_bytes, to_bytes

if TYPE_CHECKING:
    from torch import Tensor

    from algonet.render import Camera, Mesh, MeshFit, MeshFitter, Targets

#: The thumbnail is drawn, and a frame of the film kept, this often in a run; the checkpoint is written as often.
FRAMES = 40
#: The film's and the thumbnail's views are at most this wide and high.
MOST_SIDE = 160
#: Names in the folder of a run.
CHECKPOINT, THUMBNAIL, FILM, REPORT = "checkpoint.npz", "progress.png", "fit.gif", "report.json"


@dataclass(frozen=True)
class RunFiles:
    """What a run writes: a folder with checkpoint, thumbnail, film and report, and a mesh with its texture."""

    folder: Path
    mesh: Path
    textured: bool

    def check(self, force: bool, inputs: Iterable[Path] = ()) -> None:
        """Raise if a file would be overwritten that is not this run's; what an interrupted run left here is."""
        beside = (".mtl", ".png") if self.textured and self.mesh.suffix.lower() == ".obj" else ()
        results = [self.mesh, *(self.mesh.with_suffix(ending) for ending in beside), self.folder / REPORT]
        pictures = [self.folder / FILM, self.folder / THUMBNAIL]
        check_out(*results, *pictures, force=force or self.begun, inputs=inputs)

    @property
    def begun(self) -> bool:
        """Whether a run was interrupted here; whether it was this one, its checkpoint tells."""
        return (self.folder / CHECKPOINT).is_file()


class FitRun:
    """One fit in its folder: `advance()` to the end, from wherever an earlier call with the same settings stopped."""

    def __init__(self, files: RunFiles, fitter: MeshFitter, settings: dict[str, Any], source: str):
        self.files, self.fitter, self.settings, self.source = files, fitter, settings, source
        self.folder, self.begun = files.folder, files.begun
        self.frames: list[Any] = []
        self.seconds = 0.0
        self.resumed_at = self._resume()

    @property
    def checkpoint(self) -> Path:
        return self.folder / CHECKPOINT

    def advance(self, *, shown: bool = True) -> bool:
        """Go on until the fit is done (True) or interrupted (False); the checkpoint is written either way."""
        from rich.progress import Progress

        fitter, every = self.fitter, max(1, self.fitter.steps // FRAMES)
        began = time.monotonic()
        try:
            with Progress(transient=True, disable=not shown) as bar:
                task = bar.add_task("fitting the mesh", total=fitter.steps, completed=fitter.taken)
                while not fitter.done:
                    if fitter.taken % every == 0:
                        self._draw_thumbnail()
                        self._save_checkpoint(time.monotonic() - began)
                    fitter.step()
                    bar.update(task, completed=fitter.taken)
        except (KeyboardInterrupt, SystemExit):
            self._save_checkpoint(time.monotonic() - began)
            return False
        self.seconds += time.monotonic() - began
        self._draw_thumbnail()
        self._save_checkpoint(0.0)
        return True

    def finish(self, texture: int, force: bool) -> tuple[MeshFit, dict[str, Any]]:
        """Write mesh, texture, film and report, all or none; the checkpoint is no longer needed."""
        from algonet.render import fit_texture
        from algonet.render.meshes import mesh_files

        fit, targets, mesh_file = self.fitter.result(), self.fitter.targets, self.files.mesh
        mesh = fit.mesh
        if texture and targets.rgb is not None and mesh_file.suffix.lower() in (".obj", ".glb"):
            mesh = fit_texture(mesh, targets, size=max(texture, least_texture(len(mesh.faces))))
        report = self._report(fit, mesh_file)
        files = {self.folder / REPORT: f"{json.dumps(report, indent=1)}\n".encode(), **mesh_files(mesh, mesh_file)}
        if self.frames:
            files[self.folder / FILM] = gif_bytes(self.frames, 120, rest=1500)
        write_files(files, overwrite=force or self.begun)
        self.checkpoint.unlink(missing_ok=True)
        return fit, report

    def _report(self, fit: MeshFit, mesh_file: Path) -> dict[str, Any]:
        from algonet import __version__

        return {
            "source": self.source,
            "mesh": mesh_file.name,
            "settings": self.settings,
            "steps": len(fit.history),
            "seconds": round(self.seconds, 1),
            "resumed_at_step": self.resumed_at,
            "pictures_loss": fit.history[-1]["pictures"] if fit.history else None,
            "quality": fit.quality._asdict(),
            "history": fit.history[:: max(1, len(fit.history) // 100)],
            "version": __version__,
        }

    def _draw_thumbnail(self) -> None:
        """What the first views show, above what the fit shows."""
        picture = thumbnail(self.fitter.mesh(), self.fitter.targets)
        self.frames.append(picture)
        write_bytes(self.folder / THUMBNAIL, png_bytes(picture))

    def _save_checkpoint(self, more_seconds: float) -> None:
        import numpy as np
        import torch

        state = self.fitter.state_dict()
        arrays = {
            k: v.detach().cpu().numpy() if isinstance(v, torch.Tensor) else np.asarray(v) for k, v in state.items()
        }
        frames = np.stack(self.frames) if self.frames else np.zeros((0, 1, 1, 3), np.uint8)
        buffer = io.BytesIO()
        arrays |= {
            "fingerprint": np.asarray(self._fingerprint()),
            "frames": frames,
            "seconds": np.asarray(self.seconds + more_seconds),
        }
        np.savez_compressed(buffer, **arrays)  # pyright: ignore[reportArgumentType]
        write_bytes(self.checkpoint, buffer.getvalue())

    def _resume(self) -> int:
        """The step from which a checkpoint of the same run lets it go on; 0 if there is none."""
        import numpy as np
        import torch

        if not self.checkpoint.exists():
            return 0
        try:
            with np.load(self.checkpoint, allow_pickle=False) as file:
                found = {name: file[name] for name in file.files}
        except (OSError, ValueError, zipfile.BadZipFile) as error:
            raise ValueError(
                f"{self.checkpoint}: not readable as a checkpoint ({error}); remove it to start again."
            ) from error
        if str(found.pop("fingerprint", "")) != self._fingerprint():
            raise ValueError(
                f"{self.checkpoint}: belongs to a run with other settings or pictures; remove it, or choose another --out."
            )
        self.frames, self.seconds = list(found.pop("frames")), float(found.pop("seconds"))
        self.fitter.load_state_dict({name: torch.from_numpy(np.asarray(value)) for name, value in found.items()})
        return self.fitter.taken

    def _fingerprint(self) -> str:
        """The same for the same pictures and settings."""
        targets, digest = self.fitter.targets, hashlib.sha256(json.dumps(self.settings, sort_keys=True).encode())
        for pictures in (targets.silhouettes, targets.rgb, targets.normals, targets.depth, targets.cameras.matrix):
            if pictures is not None:
                digest.update(pictures.detach().cpu().numpy().tobytes())
        return digest.hexdigest()


def least_texture(faces: int) -> int:
    """The smallest texture, a power of two, that gives each face four texels a side."""
    cells = math.ceil(math.sqrt(math.ceil(faces / 2)))
    return 2 ** math.ceil(math.log2(8 * cells))


def thumbnail(mesh: Mesh, targets: Targets, most: int = 4) -> Any:
    """Bytes (H, W, 3): up to four views of the targets, and below each what the mesh looks like from there.

    Colours are shown as they are fitted, without light; a mesh without colours is lit, to show its shape.
    """
    import torch

    from algonet.render import SmoothRenderer
    from algonet.render.fitting.mesh import UNLIT
    from algonet.render.modules import DEFAULT_LIGHTS

    count = min(most, len(targets))
    chosen = torch.linspace(0, len(targets) - 1, count).round().long()
    views = targets[chosen.to(targets.cameras.matrix.device)]
    share = min(1.0, MOST_SIDE / max(targets.size))
    size = (max(1, round(targets.size[0] * share)), max(1, round(targets.size[1] * share)))
    renderer = SmoothRenderer(size, background=1.0, two_sided=False).to(mesh.vertices.device)
    colored = any(looks is not None for looks in (mesh.vertex_colors, mesh.face_colors, mesh.texture))
    shown = mesh if colored else mesh.replace(vertex_colors=torch.full_like(mesh.vertices, 0.7))
    with torch.no_grad():
        below = renderer(shown, views.cameras, UNLIT if colored else DEFAULT_LIGHTS).rgb
        above = torch.nn.functional.interpolate(_shown(views).movedim(-1, 1), size, mode="area").movedim(1, -1)
        return to_bytes(torch.cat([torch.cat(list(p), 1) for p in (above, below)]))


def _shown(targets: Targets) -> Tensor:
    """The targets as pictures on white (N, H, W, 3)."""
    import torch

    alpha = targets.alpha
    if targets.rgb is not None:
        color = targets.rgb[..., :3]
    elif targets.normals is not None:
        color = targets.normals / 2 + 0.5
    else:
        assert alpha is not None
        color = torch.full((*alpha.shape, 3), 0.5).to(alpha)
    return color if alpha is None else torch.lerp(torch.ones_like(color), color, alpha[..., None])


def read_cameras(path: Path, size: tuple[int, int]) -> tuple[list[str], Camera]:
    """Names of pictures and their cameras from a `transforms.json`, as NeRF data sets have it; pictures are of `size`.

    `frames` with `file_path` and `transform_matrix` (camera to world, the camera looking along its -z, y up); the angle of
    view by `camera_angle_x`, or `fl_x`, `fl_y`, `cx`, `cy` with `w` and `h`, for all frames or in each.
    """
    import torch

    from algonet.render import Camera

    try:
        content = read_json(path)
        frames = content["frames"] if isinstance(content, dict) else None
        if not (isinstance(frames, list) and frames and all(isinstance(frame, dict) for frame in frames)):
            raise ValueError("wanted {'frames': [...]}, at least one")
        names = [str(frame["file_path"]) for frame in frames]
        poses = torch.tensor([frame["transform_matrix"] for frame in frames], dtype=torch.float32)
        lenses = torch.stack([_lens({**content, **frame}, size) for frame in frames])
    except (ValueError, KeyError, TypeError, RuntimeError) as error:
        reason = f"no {error}" if isinstance(error, KeyError) else " ".join(str(error).split())[:200]
        raise ValueError(f"{path}: not readable as a camera file (transforms.json): {reason}") from error
    if poses.shape[1:] != (4, 4):
        raise ValueError(f"{path}: each `transform_matrix` must be 4 x 4, got {tuple(poses.shape[1:])}.")
    flip = torch.diag(torch.tensor([1.0, -1.0, -1.0]))
    rotation = flip @ poses[:, :3, :3].mT
    translation = -(rotation @ poses[:, :3, 3:])[..., 0]
    return names, Camera.from_opencv(lenses, rotation, translation, size=size)


def _lens(frame: dict[str, Any], size: tuple[int, int]) -> Tensor:
    """OpenCV's matrix (3, 3) for pictures of `size`."""
    import torch

    height, width = size
    if "fl_x" in frame:
        across, down = width / float(frame.get("w", width)), height / float(frame.get("h", height))
        fx, fy = float(frame["fl_x"]) * across, float(frame.get("fl_y", frame["fl_x"])) * down
        cx = float(frame.get("cx", frame.get("w", width) / 2)) * across
        cy = float(frame.get("cy", frame.get("h", height) / 2)) * down
    else:
        angle = float(frame["camera_angle_x"])
        if not 0 < angle < math.pi:
            raise ValueError(f"`camera_angle_x` is in radians, between 0 and {math.pi:.2f}, got {angle:g}")
        fx = fy = width / (2 * math.tan(angle / 2))
        cx, cy = width / 2, height / 2
    # OpenCV counts pixels from their centres
    return torch.tensor([[fx, 0.0, cx - 0.5], [0.0, fy, cy - 0.5], [0.0, 0.0, 1.0]])


def camera_file(camera: Camera, names: list[str], aspect: float) -> str:
    """Cameras as the text of a `transforms.json`; `aspect` is width over height of the pictures."""
    import torch

    from algonet.render.fitting.targets import camera_axes

    axes, frames = camera_axes(camera).cpu(), []
    for i, name in enumerate(names):
        pose = torch.eye(4)
        pose[:3, :3], pose[:3, 3] = axes[i].T, camera.position[i].cpu()
        focal = float(camera.matrix[i, 1, :3].norm())
        angle = 2 * math.atan(aspect / focal)
        frames.append({"file_path": name, "camera_angle_x": angle, "transform_matrix": pose.tolist()})
    return json.dumps({"frames": frames}, indent=1) + "\n"
