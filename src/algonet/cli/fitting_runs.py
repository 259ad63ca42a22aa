"""Runs of `algonet fit-mesh`: a folder with checkpoint, thumbnail, film, mesh, texture and report."""

from __future__ import annotations

import hashlib
import io
import json
import math
import time
import zipfile
import zlib
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from algonet.cli.common import check_out, report_bytes
from algonet.core.files import read_file, write_bytes, write_files
from algonet.core.memory import check_memory
from algonet.core.pictures import gif_bytes, png_bytes, to_bytes

if TYPE_CHECKING:
    from torch import Tensor

    from algonet.fit import MeshFit, MeshFitter, Targets
    from algonet.render import Mesh

#: The thumbnail is drawn, and a frame of the film kept, this often in a run; the checkpoint is written as often.
FRAMES = 40
#: The film's and the thumbnail's views are at most this wide and high.
MOST_SIDE = 160
#: Names in the folder of a run.
CHECKPOINT, THUMBNAIL, FILM, REPORT = "checkpoint.npz", "progress.png", "fit.gif", "report.json"


def check_run(folder: Path, mesh: Path, textured: bool, force: bool) -> None:
    """Raise if a file would be overwritten that is not this run's; what an interrupted run left here is."""
    beside = (".mtl", ".png") if textured and mesh.suffix.lower() == ".obj" else ()
    results = [mesh, *map(mesh.with_suffix, beside), *(folder / name for name in (REPORT, FILM, THUMBNAIL))]
    check_out(*results, force=force or (folder / CHECKPOINT).is_file())


class FitRun:
    """One fit in its folder: `advance()` to the end, from wherever an earlier call with the same settings stopped.

    Whether a checkpoint is this run's, its fingerprint tells."""

    def __init__(self, folder: Path, mesh: Path, fitter: MeshFitter, settings: dict[str, Any], source: str):
        self.folder, self.mesh, self.fitter, self.settings, self.source = folder, mesh, fitter, settings, source
        self.begun = self.checkpoint.is_file()
        self.frames: list[Any] = []
        self.seconds = 0.0
        self.resumed_at = self._resume() if self.begun else 0

    @property
    def checkpoint(self) -> Path:
        return self.folder / CHECKPOINT

    def advance(self, *, shown: bool = True) -> bool:
        """Go on until the fit is done (True) or interrupted (False); the checkpoint is written either way."""
        from algonet.fit.progress import progress_of

        fitter, every, text = self.fitter, max(1, self.fitter.steps // FRAMES), "fitting the mesh"
        began = time.monotonic() - self.seconds
        with suppress(KeyboardInterrupt, SystemExit), progress_of(fitter.steps, text, shown, fitter.taken) as advance:
            while not fitter.done:
                if fitter.taken % every == 0:
                    self._draw_thumbnail()
                    self._save_checkpoint(began)
                fitter.step()
                advance(1, text)
            self._draw_thumbnail()
        self._save_checkpoint(began)
        return fitter.done

    def finish(self, texture: int, force: bool) -> tuple[MeshFit, dict[str, Any]]:
        """Write mesh, texture, film and report, all or none; the checkpoint is no longer needed."""
        from algonet.fit import fit_texture
        from algonet.render.meshes import mesh_files

        fit, targets, mesh_file = self.fitter.result(), self.fitter.targets, self.mesh
        mesh = fit.mesh
        if texture and targets.rgb is not None and mesh_file.suffix.lower() in (".obj", ".glb"):
            mesh = fit_texture(mesh, targets, size=max(texture, least_texture(len(mesh.faces))))
        report = self._report(fit)
        files = {self.folder / REPORT: report_bytes(report), **mesh_files(mesh, mesh_file)}
        if self.frames:
            files[self.folder / FILM] = gif_bytes(self.frames, 120, rest=1500)
        write_files(files, overwrite=force or self.begun)
        self.checkpoint.unlink(missing_ok=True)
        return fit, report

    def _report(self, fit: MeshFit) -> dict[str, Any]:
        from algonet import __version__

        return {
            "source": self.source,
            "mesh": self.mesh.name,
            "settings": self.settings,
            "steps": len(fit.history),
            "seconds": round(self.seconds, 1),
            "resumed_at_step": self.resumed_at,
            "pictures_loss": fit.history[-1]["pictures"] if fit.history else None,
            "quality": fit.quality._asdict(),
            "notes": fit.notes,
            "history": fit.history[:: max(1, len(fit.history) // 100)],
            "version": __version__,
        }

    def _draw_thumbnail(self) -> None:
        """What the first views show, above what the fit shows."""
        picture = thumbnail(self.fitter.mesh(), self.fitter.targets)
        self.frames.append(picture)
        write_bytes(self.folder / THUMBNAIL, png_bytes(picture))

    def _save_checkpoint(self, began: float) -> None:
        import numpy as np
        import torch

        state = self.fitter.state_dict()
        arrays = {name: torch.as_tensor(value).detach().cpu().numpy() for name, value in state.items()}
        frames = np.stack(self.frames) if self.frames else np.zeros((0, 1, 1, 3), np.uint8)
        buffer = io.BytesIO()
        self.seconds = time.monotonic() - began
        about: dict[str, Any] = {"fingerprint": self._fingerprint(), "seconds": self.seconds}
        np.savez_compressed(buffer, frames=frames, **about, **arrays)  # pyright: ignore[reportArgumentType]
        write_bytes(self.checkpoint, buffer.getvalue())

    def _resume(self) -> int:
        """The step from which a checkpoint of the same run lets it go on."""
        import torch

        found = read_arrays(self.checkpoint)
        if str(found.pop("fingerprint", "")) != self._fingerprint():
            raise ValueError(
                f"{self.checkpoint}: belongs to a run with other settings or pictures; remove it, or choose another --out."
            )
        self.frames, self.seconds = list(found.pop("frames")), float(found.pop("seconds"))
        self.fitter.load_state_dict({name: torch.from_numpy(value) for name, value in found.items()})
        return self.fitter.taken

    def _fingerprint(self) -> str:
        """The same for the same pictures and settings."""
        targets, digest = self.fitter.targets, hashlib.sha256(json.dumps(self.settings, sort_keys=True).encode())
        for pictures in (*targets.given.values(), targets.cameras.matrix):
            digest.update(pictures.detach().cpu().numpy().tobytes())
        return digest.hexdigest()


def read_arrays(path: Path) -> dict[str, Any]:
    """The arrays of a checkpoint; raises ValueError for a file that is none."""
    import numpy as np
    from numpy.lib.format import read_array_header_1_0, read_magic

    def array(content: bytes) -> np.ndarray:
        read_magic(stream := io.BytesIO(content))
        shape, by_columns, dtype = read_array_header_1_0(stream)
        if dtype.hasobject:
            raise ValueError("it holds Python objects")  # a view of them would be a view of any address
        # A view, which a false shape does not fit: np.load would allocate what the shape says
        return np.ndarray(shape, dtype, content, stream.tell(), order="F" if by_columns else "C").copy()

    try:
        with zipfile.ZipFile(io.BytesIO(read_file(path))) as archive:
            check_memory("fit-mesh", f"{path}", 2 * sum(part.file_size for part in archive.infolist()))
            return {name.removesuffix(".npy"): array(archive.read(name)) for name in archive.namelist()}
    except (OSError, ValueError, TypeError, zipfile.BadZipFile, zlib.error) as error:
        raise ValueError(f"{path}: not readable as a checkpoint ({error}); remove it to start again.") from error


def least_texture(faces: int) -> int:
    """The smallest texture, a power of two, that gives each face four texels a side."""
    cells = math.ceil(math.sqrt(math.ceil(faces / 2)))
    return 2 ** math.ceil(math.log2(8 * cells))


def thumbnail(mesh: Mesh, targets: Targets, most: int = 4) -> Any:
    """Bytes (H, W, 3): up to four views of the targets, and below each what the mesh looks like from there.

    Colours are shown as they are fitted, without light; a mesh without colours is lit, to show its shape.
    """
    import torch

    from algonet.fit.mesh import UNLIT
    from algonet.fit.targets import shrunk
    from algonet.render import SmoothRenderer
    from algonet.render.modules import DEFAULT_LIGHTS

    chosen = torch.linspace(0, len(targets) - 1, min(most, len(targets))).round().long()
    views = targets[chosen.to(targets.cameras.matrix.device)]
    above = shrunk(_shown(views), MOST_SIDE)
    renderer = SmoothRenderer((above.shape[1], above.shape[2]), background=1.0, two_sided=False).to(
        mesh.vertices.device
    )
    colored = any(looks is not None for looks in (mesh.vertex_colors, mesh.face_colors, mesh.texture))
    shown = mesh if colored else mesh.replace(vertex_colors=torch.full_like(mesh.vertices, 0.7))
    with torch.no_grad():
        below = renderer(shown, views.cameras, UNLIT if colored else DEFAULT_LIGHTS).rgb
        return to_bytes(torch.cat([torch.cat(list(p), 1) for p in (above, below)]))


def _shown(targets: Targets) -> Tensor:
    """The targets as pictures on white (N, H, W, 3): colours, or normals from -1 to 1, or grey."""
    import torch

    layers = targets.layers()
    alpha, color = layers.get("silhouettes", torch.ones(())), layers.get("rgb")
    if color is None:
        color = (layers.get("normals", 0) + alpha.expand(*alpha.shape[:-1], 3)) / 2
    return color + 1 - alpha
