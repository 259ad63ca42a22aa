"""A mesh from pictures: vertices moved by large steps, remeshed on the way, from wide noise to narrow."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from algonet.core.checks import check_integer
from algonet.core.tracing import outside_autocast
from algonet.render import (
    AmbientLight,
    Camera,
    Coverage,
    Mesh,
    Rendering,
    SmoothRenderer,
    Topology,
    edge_length_loss,
    flatten_loss,
    icosphere,
    laplacian_loss,
)
from algonet.render.coverage import DEFAULT_COVERAGE
from algonet.render.lights import Light

from .hull import half_heights, viewed_place, visual_hull
from .large_steps import LargeSteps
from .progress import decay, geometric, progress_of
from .quality import MeshQuality, mesh_quality, roll_back
from .remesh import EQUILATERAL, Remesh, detail_lengths, remesh, surface
from .targets import Level, Targets

#: Light from everywhere: colours are seen as they are.
UNLIT = (AmbientLight((1.0, 1.0, 1.0)),)
#: The noise's scale falls in this many steps; targets are blurred again at each.
STAGES = 12
#: A template that covers no pixel of any picture to this degree is not seen.
SEEN = 1e-3
#: Learning rates of colours (before the sigmoid) and of lights: some thirty steps from one end of their range to the other.
PAINT_RATE, LIGHT_RATE = 0.1, 0.05
#: Faces are remeshed every so many steps, to edges of so many pixels at least.
REMESH_EVERY, LEAST_EDGE = 20, 1.25
#: After this share of the steps the faces stay as they are, so that the last steps are spent on the shape alone.
REMESH_UNTIL = 0.85
#: So much of what masks leave must be out of reach of what is unknown.
LEAST_KNOWN = 0.1


@dataclass(frozen=True, eq=False)
class MeshFit:
    """The fitted `mesh`, its `lights` (learned ones with what was found), its faults, and per step: the total loss, the
    pictures' part, the noise's scale and the number of faces. `notes` say what the pictures leave open or get wrong."""

    mesh: Mesh
    history: list[dict[str, float]]
    lights: Sequence[Light]
    quality: MeshQuality
    notes: list[str]

    def __repr__(self) -> str:
        loss = f"loss {self.history[-1]['pictures']:.5f}, " if self.history else ""
        noted = "".join(f"; {note}" for note in self.notes)
        return f"MeshFit({self.quality.faces} faces, {loss}{self.quality.share:.2%} of them bad{noted})"


@dataclass(frozen=True)
class MeshWeights:
    """How much each kind of picture counts in `fit_mesh`, and each regulariser (off: large steps need none)."""

    silhouettes: float = 3.0
    rgb: float = 1.0
    normals: float = 1.0
    depth: float = 1.0
    laplacian: float = 0.0
    flatten: float = 0.0
    edges: float = 0.0


@outside_autocast
def fit_mesh(
    targets: Targets | Tensor,
    cameras: Camera | None = None,
    template: Mesh | None = None,
    *,
    steps: int = 500,
    scales: tuple[float, float] = (4.0, 0.5),
    views: int | None = 8,
    optimizer: LargeSteps = LargeSteps(),
    remesh: Remesh | None = None,
    weights: MeshWeights = MeshWeights(),
    lights: Sequence[Light] = UNLIT,
    two_sided: bool = False,
    coverage: Coverage = DEFAULT_COVERAGE,
    progress: bool = False,
    seed: int = 0,
) -> MeshFit:
    """Move the template's vertices (and learn its colours) until it looks like the targets from all cameras.

    `targets` are `Targets`; or, with `cameras`, silhouettes (N, H, W) or RGBA (N, H, W, 4). Minimises the mean squared
    difference of what is rendered and the targets blurred by the same noise, whose scale falls geometrically between
    `scales` (in pixels; while it is large, smaller pictures are rendered). `views` pictures are drawn per step (None: all).

    Without a template, the fit begins with the visual hull, which has the holes that the silhouettes show, or with a ball where
    there is none (one view, no silhouettes, views that contradict each other: `notes` say so); it is remeshed on the way
    (`Remesh()`), so that detail appears where the pictures show it. A template keeps its faces unless `remesh` is given. It is
    taken to be closed; for open ones set `two_sided`. Any `coverage` will do; its own softness does not count. Tensors that
    require gradients in `lights` are learned. Interrupting keeps what is there so far.

    >>> cameras = Camera.look_at(torch.tensor([[0.0, 0.0, 3.0], [3.0, 0.0, 0.0]]))
    >>> fit = fit_mesh(torch.ones(2, 16, 16), cameras, icosphere(1), steps=2)
    >>> len(fit.history), fit.quality.inverted
    (2, 0)
    """
    fitter = MeshFitter(
        _as_targets(targets, cameras),
        template,
        steps=steps,
        scales=scales,
        views=views,
        optimizer=optimizer,
        remesh=remesh,
        weights=weights,
        lights=lights,
        two_sided=two_sided,
        coverage=coverage,
        seed=seed,
    )
    with suppress(KeyboardInterrupt), progress_of(steps, "fitting the mesh", progress) as advance:
        while not fitter.done:
            fitter.step()
            advance()
    return fitter.result()


class MeshFitter:
    """A fit under way: `step()` until `done`, `mesh()` as it is now, `state_dict()` to go on later. `fit_mesh` is its loop."""

    def __init__(
        self,
        targets: Targets,
        template: Mesh | None = None,
        *,
        steps: int = 500,
        scales: tuple[float, float] = (4.0, 0.5),
        views: int | None = 8,
        optimizer: LargeSteps = LargeSteps(),
        remesh: Remesh | None = None,
        weights: MeshWeights = MeshWeights(),
        lights: Sequence[Light] = UNLIT,
        two_sided: bool = False,
        coverage: Coverage = DEFAULT_COVERAGE,
        seed: int = 0,
    ):
        check_integer("fit_mesh", "steps", steps, 1)
        if not 0 < scales[1] <= scales[0] < math.inf:
            raise ValueError(
                f"fit_mesh: `scales` must fall from the first to the second, both positive, got {scales!r}."
            )
        alpha = targets.alpha
        if alpha is not None and not bool((alpha > 0).any()):
            raise ValueError("fit_mesh: the pictures show nothing: silhouettes (or alpha) are 0 everywhere.")
        if targets.masks is not None and not bool((targets.masks > 0).any()):
            raise ValueError(
                "fit_mesh: nothing counts: `masks` are 0 everywhere; they are 1 where the pictures are known."
            )
        scales, self.notes = _scales_within_masks(targets, scales, coverage)
        begun = template is None
        if template is None:
            template, note = visual_hull(targets)
            self.notes += [note] if note else []
            template = around_targets(icosphere(3, 0.5), targets) if template is None else template
            remesh = Remesh() if remesh is None else remesh
        self.targets = targets.to(template.vertices)
        self.template, self.remesh, self.weights, self.views = template, remesh, weights, views
        self.steps, self.scales, self.taken = steps, scales, 0
        self.moves = optimizer.start(template)
        #: Where the vertices were when no face was known to cut another
        self.apart = self.moves.vertices.detach().clone()
        colors = template.vertex_colors
        colors = torch.full_like(template.vertices, 0.5) if colors is None else colors
        self._repaint(pad(torch.logit(colors.detach().clamp(0.02, 0.98)), (0, 6)), 0)
        self.lights = [_mapped(light, lambda t: t.clone().requires_grad_()) for light in lights]
        #: Their tensors that are learned
        self.learned = [t for light in self.lights for t in _learned(light).values()]
        self.light_optimizer = torch.optim.Adam(self.learned, lr=LIGHT_RATE) if self.learned else None
        background = targets.background if targets.alpha is None else 0.0
        self.renderer = SmoothRenderer(
            (1, 1), coverage, shading="vertex", two_sided=two_sided, background=background, background_depth=0.0
        ).to(template.vertices.device)
        self.generator = torch.Generator().manual_seed(seed)
        self.level: Level | None = None
        self.topology: Topology | None = None
        self.losses: list[Tensor] = []
        self.faces: list[int] = []
        if begun:
            self._remesh()

    @property
    def done(self) -> bool:
        return self.taken >= self.steps

    def mesh(self) -> Mesh:
        """The mesh at present, with gradients."""
        colors = torch.sigmoid(self.colors) if self.targets.rgb is not None else None
        return Mesh(self.moves.vertices, self.moves.faces, vertex_colors=colors)

    def scale(self, step: int) -> float:
        """The noise's scale at a step, in pixels of the targets."""
        stage = min(STAGES - 1, step * STAGES // self.steps)
        return geometric(self.scales, stage / (STAGES - 1))

    @outside_autocast
    def step(self) -> None:
        """One step of the fit."""
        self._set_scale(self.scale(self.taken))
        share = self.taken / self.steps
        if self.remesh is not None and self.taken and self.taken % REMESH_EVERY == 0:
            self._part()
            if share < REMESH_UNTIL:
                self._remesh()
        mesh = self.mesh()
        chosen = torch.arange(len(self.targets))
        if self.views is not None and self.views < len(chosen):
            chosen = torch.randperm(len(chosen), generator=self.generator)[: self.views]
        chosen = chosen.to(mesh.vertices.device)
        out = self._render(mesh, chosen)
        if not self.taken:
            self._check_seen(out, mesh)
        seen = self._difference(out, chosen)
        loss = seen + self._penalty(mesh)
        loss.backward()
        self.moves.step(decay(share))
        self.paint.param_groups[0]["lr"] = PAINT_RATE * decay(share)
        self.paint.step()
        self.paint.zero_grad()
        if self.light_optimizer is not None:
            self.light_optimizer.step()
            self.light_optimizer.zero_grad()
        self.taken += 1
        if self.done and self.remesh is not None:
            self._part()
        self.losses.append(torch.stack([loss.detach(), seen.detach()]))
        self.faces.append(len(self.moves.faces))

    def result(self) -> MeshFit:
        """What has been found so far."""
        # Read at the end: a look at every step would wait for the device
        values = torch.stack(self.losses).tolist() if self.losses else []
        history = [
            {"loss": both[0], "pictures": both[1], "scale": self.scale(step), "faces": self.faces[step]}
            for step, both in enumerate(values)
        ]
        with torch.no_grad():
            mesh = self.mesh()
            mesh = mesh.replace(vertices=mesh.vertices.detach())
        lights = [_mapped(light, Tensor.detach) for light in self.lights]
        return MeshFit(mesh, history, lights, mesh_quality(mesh), self.notes)

    def state_dict(self) -> dict[str, Any]:
        """Tensors and numbers from which a fit with the same arguments goes on as if it had not stopped."""
        state = {f"moves.{k}": v for k, v in self.moves.state_dict().items()}
        state |= {"paint.table": self._painted(), "paint.steps": int(self.paint.state[self.colors]["step"])}
        state |= {f"light.{i}": tensor.detach() for i, tensor in enumerate(self.learned)}
        return state | {
            "taken": self.taken,
            "apart": self.apart,
            "losses": torch.stack(self.losses) if self.losses else torch.zeros(0, 2),
            "faces": torch.tensor(self.faces, dtype=torch.long),
            "generator": self.generator.get_state(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a `state_dict`."""
        self.moves.load_state_dict({k[6:]: v for k, v in state.items() if k.startswith("moves.")})
        self._repaint(state["paint.table"].to(self.colors), int(state["paint.steps"]))
        with torch.no_grad():
            for i, tensor in enumerate(self.learned):
                tensor.copy_(state[f"light.{i}"])
        self.apart = state["apart"].to(self.moves.vertices)
        self.taken, self.faces = int(state["taken"]), state["faces"].tolist()
        self.losses = list(state["losses"].to(self.moves.vertices))
        self.generator.set_state(state["generator"])
        self.topology = None

    def _set_scale(self, scale: float) -> None:
        if self.level is not None and math.isclose(self.level.scale * self.level.factor, scale):
            return
        self.level = Level(self.targets, scale, self.renderer.coverage)
        self.renderer.size = self.level.size
        self.renderer.set_scale(self.level.scale)

    def _render(self, mesh: Mesh, chosen: Tensor) -> Rendering:
        normals = mesh.vertex_normals() if self.targets.normals is not None else None
        return self.renderer(mesh, self.targets.cameras[chosen], self.lights, normals)

    def _check_seen(self, out: Rendering, mesh: Mesh) -> None:
        """Raise where no camera sees the outside of the first mesh: nothing would ever move it."""
        if bool((out.silhouette > SEEN).any()):
            return
        with torch.no_grad():
            if len(out.silhouette) < len(self.targets):
                out = self._render(mesh, torch.arange(len(self.targets), device=mesh.vertices.device))
        if not bool((out.silhouette > SEEN).any()):
            inside = "" if self.renderer.two_sided else ", or they see its inside (two_sided=True shows it)"
            raise ValueError(
                f"fit_mesh: no camera sees the template: it lies outside of all pictures{inside}; "
                "move and scale it to where the cameras look, or leave it out."
            )

    def _difference(self, out: Rendering, chosen: Tensor) -> Tensor:
        """The weighted mean squared differences of the layers that the targets have."""
        level = self.level
        assert level is not None
        shown = {
            "silhouettes": out.silhouette[..., None],
            "rgb": out.rgb,
            "normals": out.attributes,
            "depth": out.depth[..., None],
        }
        mask = None if level.mask is None else level.mask[chosen]
        total = out.silhouette.new_zeros(())
        for name, layer in level.layers.items():
            difference = (shown[name] - layer[chosen]).square()
            difference = difference if mask is None else difference * mask
            total = total + getattr(self.weights, name) * difference.mean()
        return total

    def _penalty(self, mesh: Mesh) -> Tensor | float:
        terms = {"laplacian": laplacian_loss, "flatten": flatten_loss, "edges": edge_length_loss}
        used = {name: loss for name, loss in terms.items() if getattr(self.weights, name)}
        if not used:
            return 0.0
        if self.topology is None:
            self.topology = Topology.of(mesh)
        return sum(getattr(self.weights, name) * loss(mesh, self.topology) for name, loss in used.items())

    def _remesh(self) -> None:
        """Edges brought to the length that suits the noise; colours and moments go along."""
        options, vertices, faces = self.remesh, self.moves.vertices.detach(), self.moves.faces
        assert options is not None
        # How large a pixel of the targets is, in the world, at the mesh's distance
        pixel = float(half_heights(self.targets.cameras, vertices.mean(0)).mean()) * 2 / self.targets.size[0]
        length = max(options.edge * self.scale(self.taken), LEAST_EDGE) * pixel
        length = max(length, math.sqrt(surface(vertices, faces) / (EQUILATERAL * options.max_faces)))
        lengths = detail_lengths(vertices, faces, length)
        data = torch.cat([self.moves.momentum, self._painted()], -1)
        vertices, faces, data = remesh(vertices, faces, lengths, data)
        self.moves.replace(vertices, faces, data[:, :3])
        self._repaint(data[:, 3:], int(self.paint.state[self.colors]["step"]))
        self.apart, self.topology = vertices.clone(), None

    def _painted(self) -> Tensor:
        """Colours before the sigmoid with their moments (V, 9), which go along through remeshing."""
        state = self.paint.state[self.colors]
        return torch.cat([self.colors.detach(), state["exp_avg"], state["exp_avg_sq"]], -1)

    def _repaint(self, table: Tensor, steps: int) -> None:
        """Go on with such a table after so many steps."""
        colors, first, second = (t.clone() for t in table.split(3, -1))
        self.colors = colors.requires_grad_()
        self.paint = torch.optim.Adam([colors], PAINT_RATE, betas=(0.9, 0.99), eps=1e-12)
        self.paint.state[colors] = {"step": torch.tensor(float(steps)), "exp_avg": first, "exp_avg_sq": second}

    def _part(self) -> None:
        """Take back what made parts of the surface run into each other since the last look."""
        vertices, back = roll_back(self.moves.vertices, self.apart, self.moves.faces)
        with torch.no_grad():
            self.moves.vertices.copy_(vertices)
            self.moves.momentum[back] = 0
        self.apart = vertices


def _as_targets(targets: Targets | Tensor, cameras: Camera | None) -> Targets:
    if isinstance(targets, Targets):
        if cameras is not None:
            raise ValueError(
                "fit_mesh: `Targets` hold their cameras; leave `cameras` out. A template is given as template=mesh."
            )
        return targets
    if not isinstance(targets, Tensor):
        raise TypeError(
            f"fit_mesh: the first argument must be `Targets`, or a tensor of pictures before their cameras, "
            f"got {type(targets).__name__}; call it as fit_mesh(targets) or fit_mesh(pictures, cameras)."
        )
    if cameras is None:
        raise ValueError("fit_mesh: pictures as a tensor need `cameras`, one per picture; or give `Targets`.")
    return Targets.of(targets, cameras)


def around_targets(ball: Mesh, targets: Targets) -> Mesh:
    """The ball moved to where the cameras look, and made as large as fits their pictures, roughly."""
    middle, radius = viewed_place(targets)
    return ball.replace(vertices=ball.vertices.to(middle) * radius + middle)


def _scales_within_masks(
    targets: Targets, scales: tuple[float, float], coverage: Coverage
) -> tuple[tuple[float, float], list[str]]:
    """The scales at which enough known pixels are out of the noise's reach from unknown ones, and what was changed."""
    if targets.masks is None:
        return scales, []
    known, (widest, narrowest) = float(targets.masks.mean()), scales
    while Level(targets, widest, coverage).known < LEAST_KNOWN * known:
        if widest <= narrowest:
            raise ValueError(
                f"fit_mesh: `masks` are narrower than the noise: at a scale of {narrowest:g} pixels, fewer than "
                f"{LEAST_KNOWN:.0%} of the known pixels are out of its reach from unknown ones; give larger masks, or none."
            )
        widest = max(narrowest, widest / 1.5)
    if widest == scales[0]:
        return scales, []
    return (widest, narrowest), [
        f"the masks are narrow: the noise began at {widest:.2g} pixels instead of {scales[0]:g}"
    ]


def _learned(light: Any) -> dict[str, Tensor]:
    """The tensors of a light that are to be learned, by name."""
    values = {field.name: getattr(light, field.name) for field in dataclasses.fields(light)}
    return {name: value for name, value in values.items() if isinstance(value, Tensor) and value.requires_grad}


def _mapped(light: Any, change: Callable[[Tensor], Tensor]) -> Light:
    return dataclasses.replace(light, **{name: change(value.detach()) for name, value in _learned(light).items()})
