"""Random scenes: the kernel against the dense reference, pictures and gradients by everything that has one."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from algonet import relax, render
from algonet.render import Camera, Mesh, SmoothRenderer, render_attributes

from .hunt import differs, simpler

NAMES = {**{n: getattr(relax, n) for n in relax.__all__}, **{n: getattr(render, n) for n in render.__all__}}
MESHES = ("triangle", "soup", "icosphere", "box", "torus", "fan", "needles")
#: What is wrong with some of the faces.
FLAWS = ("none", "repeated corner", "no area", "twice", "far away")
EYES = ((0.0, 0.0, 3.0), (1.5, 1.0, -2.0), (0.3, 0.1, 0.2), (0.0, 0.0, 0.7), (0.0, 4.0, 0.1), (0.0, 0.0, 40.0))
SCALES = (1.0, 0.3, 0.05, 2.5, 6.0, 20.0)
SIZES = ((4, 4), (1, 1), (5, 9), (17, 3), (24, 31))
#: From here on kernels may interpolate between samples.
WIDE = 3.0
LIGHTS = {
    "ambient": "(AmbientLight(),)",
    "default": "(AmbientLight(), DirectionalLight())",
    "point": "(AmbientLight((0.2, 0.1, 0.3)), PointLight((1.0, 2.0, 2.0)))",
}
SIMPLEST: dict[str, tuple[Any, ...]] = {
    "mesh": MESHES, "flaw": FLAWS, "batch": ((), (1,), (2,)), "size": SIZES, "scale": SCALES, "df": (8, 2, 4),
    "eye": EYES, "perspective": (True,), "conorm": ("BoundedSum()", "Probabilistic()"), "two_sided": (True,),
    "depth_steepness": (5.0, 1.0), "epsilon": (1e-12, 1e-4), "by_face": (False,), "channels": (1, 2), "dtype": ("float64",),
    "laid_out": (False,), "lights": ("ambient", "default", "point"), "surface": ("Lambert()",), "shading": ("pixel",),
    "colours": ("none", "vertex", "face", "texture"), "fov": (60.0,),
}  # fmt: skip


@dataclass(frozen=True)
class Scene:
    """A picture, by what it is made of; the mesh's noise and colours follow from the seed."""

    seed: int
    function: str
    mesh: str
    flaw: str
    batch: tuple[int, ...]
    size: tuple[int, int]
    eye: tuple[float, float, float]
    fov: float
    perspective: bool
    scale: float
    df: int
    conorm: str
    two_sided: bool
    depth_steepness: float
    epsilon: float
    by_face: bool
    channels: int
    dtype: str
    laid_out: bool
    lights: str
    surface: str
    shading: str
    colours: str

    def geometry(self) -> tuple[Tensor, Tensor]:
        """Vertices (*batch, V, 3) in float64, and faces."""
        generator = torch.Generator().manual_seed(self.seed)
        vertices, faces = _mesh(self.mesh, generator)
        vertices = vertices + 0.05 * torch.randn(*self.batch, *vertices.shape, generator=generator, dtype=torch.float64)
        if self.flaw == "repeated corner":
            faces = torch.cat([faces, faces[:2, [0, 0, 1]], faces[:1, [2, 2, 2]]])
        elif self.flaw == "no area":
            middle = vertices[..., faces[0, :2], :].mean(-2, keepdim=True)
            vertices = torch.cat([vertices, middle], -2)
            faces = torch.cat([faces, torch.tensor([[int(faces[0, 0]), int(faces[0, 1]), vertices.shape[-2] - 1]])])
        elif self.flaw == "twice":
            faces = torch.cat([faces, faces[:1], faces[:1, [0, 2, 1]]])
        elif self.flaw == "far away":
            vertices = torch.cat([vertices[..., :1, :] * 1e4 + 1e4, vertices[..., 1:, :]], -2)
        return vertices, faces

    def tensors(self) -> dict[str, Tensor]:
        """All that has a gradient, in float64."""
        vertices, faces = self.geometry()
        generator = torch.Generator().manual_seed(self.seed + 1)

        def uniform(*shape: int) -> Tensor:
            return torch.rand(*shape, generator=generator, dtype=torch.float64)

        found = {"vertices": vertices, "eye": torch.tensor(self.eye, dtype=torch.float64)}
        rows = len(faces) if self.by_face else vertices.shape[-2]
        if self.function == "render_attributes":
            found["attributes"] = uniform(*self.batch, rows, self.channels)
            found["background"] = uniform(self.channels)
        elif self.colours in ("vertex", "face"):
            found["colours"] = uniform(*self.batch, vertices.shape[-2] if self.colours == "vertex" else len(faces), 3)
        elif self.colours == "texture":
            found["colours"], found["uv"] = uniform(5, 7, 3), uniform(vertices.shape[-2], 2)
        found["scale"] = torch.tensor(self.scale, dtype=torch.float64)
        found["depth_steepness"] = torch.tensor(self.depth_steepness, dtype=torch.float64)
        return found

    @property
    def exact(self) -> bool:
        """Whether nothing is left out and nothing interpolated."""
        return self.epsilon < 1e-6 and self.scale < WIDE


class Scenes:
    """The target. Its one way: the kernel's pictures and gradients are the reference's."""

    name = "scenes"
    ways: tuple[str, ...] = ("kernel as reference",)

    def draw(self, seed: int) -> Scene:
        pick = random.Random(seed)
        return Scene(
            seed=seed,
            function=pick.choice(("render_attributes", "render_attributes", "SmoothRenderer")),
            mesh=pick.choice(MESHES),
            flaw=pick.choice(FLAWS),
            batch=pick.choice(((), (), (1,), (2,), (0,), (1, 2))),
            size=pick.choice(SIZES),
            eye=pick.choice(EYES),
            fov=pick.choice((60.0, 20.0, 120.0)),
            perspective=pick.random() < 0.8,
            scale=pick.choice(SCALES),
            df=pick.choice((8, 8, 2, 4, 16)),
            conorm=pick.choice(("BoundedSum()", "BoundedSum()", "Probabilistic()", "BoundedSum(k=4)")),
            two_sided=pick.random() < 0.6,
            depth_steepness=pick.choice((1.0, 5.0, 30.0)),
            epsilon=pick.choice((1e-12, 1e-4)),
            by_face=pick.random() < 0.3,
            channels=pick.choice((1, 2, 3, 5)),
            dtype=pick.choice(("float64", "float64", "float32")),
            laid_out=pick.random() < 0.3,
            lights=pick.choice(("ambient", "default", "point")),
            surface=pick.choice(("Lambert()", "BlinnPhong()")),
            shading=pick.choice(("pixel", "pixel", "vertex")),
            colours=pick.choice(("none", "vertex", "face", "texture")),
        )

    def compare(self, case: Scene, way: str) -> str | None:
        given = {name: t.to(getattr(torch, case.dtype)) for name, t in case.tensors().items()}
        # Kernels take silhouettes of bounded sums
        named = case.function == "render_attributes" and case.conorm != "Probabilistic()"
        found, slopes = _pictures(case, given, "numba" if named else "auto")
        # The same numbers, rounded as the kernel got them
        wanted, truth = _pictures(case, {name: t.double() for name, t in given.items()}, "reference")
        values, gradients = TOLERANCES[case.dtype, case.exact]
        if sum(c * c for c in case.eye) < 1:
            # Faces next to the camera outweigh others by their depth, and what is left out of them does: 3e-7 was seen
            values, gradients = max(values, 1e-6), max(gradients, 1e-5)
        for name, one in found.items():
            problem = differs(name, one, wanted[name], values)
            if problem:
                return problem
        for name, one in slopes.items():
            if not one.isfinite().all():
                return f"gradient of {name} is not finite"
            if name == "vertices" and case.flaw == "no area":
                continue  # A face covers by its area's size, which has a kink at 0: rounding says on which side of it we are
            # The tail that is left out of each pixel grows by df / scale of itself with the scale
            left = (
                case.epsilon * case.df / case.scale * (case.size[0] * case.size[1]) ** 0.5 if name == "scale" else 0.0
            )
            problem = differs(f"gradient of {name}", one, truth[name], gradients + left)
            if problem:
                return problem
        return None

    def smaller(self, case: Scene) -> Iterator[Scene]:
        for candidate in simpler(case, SIMPLEST):
            if candidate != case:
                yield candidate

    def snippet(self, case: Scene, way: str) -> str:
        fields = {f.name: getattr(case, f.name) for f in dataclasses.fields(case)}
        lines = ["from fuzz.hunt import failure", "from fuzz.scenes import Scene, Scenes", "", "scene = Scene("]
        lines += [f"    {name}={value!r}," for name, value in fields.items()]
        vertices, faces = case.geometry()
        return (
            "\n".join(
                [
                    *lines,
                    ")",
                    f"# vertices {vertices.tolist()}",
                    f"# faces {faces.tolist()}",
                    "print(failure(Scenes(), scene))",
                ]
            )
            + "\n"
        )


#: (precision, whether nothing is left out) -> what pictures and gradients may deviate by, as shares of the largest number
#: in them. What is left out weighs `epsilon`, and interpolation errs by as much.
TOLERANCES = {
    ("float64", True): (1e-8, 1e-6),
    ("float64", False): (1e-3, 1e-2),
    ("float32", True): (2e-3, 2e-2),
    ("float32", False): (2e-3, 2e-2),
}


def _pictures(case: Scene, given: dict[str, Tensor], backend: str) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Pictures, and the gradients of a functional that sees shapes rather than single pixels where these are interpolated."""
    leaves = {name: _laid_out(t, case.laid_out).detach().requires_grad_() for name, t in given.items()}
    out = _rendered(case, leaves, backend)
    y, x = torch.meshgrid(torch.linspace(0, 5, case.size[0]), torch.linspace(0, 4, case.size[1]), indexing="ij")
    loss = torch.zeros((), dtype=torch.float64)
    for i, (name, picture) in enumerate(out.items()):
        weights = (1.5 + torch.sin(x + (i + 1) * y)).to(picture.dtype)
        loss = (
            loss
            + (picture * (weights.unsqueeze(-1) if name in ("image", "rgb", "attributes") else weights)).sum().double()
        )
    found = (
        torch.autograd.grad(loss, list(leaves.values()), allow_unused=True)
        if loss.requires_grad
        else [None] * len(leaves)
    )
    slopes = {n: torch.zeros_like(t) if g is None else g for (n, t), g in zip(leaves.items(), found, strict=True)}
    return {name: picture.detach() for name, picture in out.items()}, slopes


def _rendered(case: Scene, leaves: dict[str, Tensor], backend: str) -> dict[str, Tensor]:
    faces = case.geometry()[1]
    noise = relax.StudentT(case.df, scale=leaves["scale"])
    coverage = render.FilteredCoverage(noise)
    conorm = eval(case.conorm, NAMES)
    if case.perspective:
        camera = Camera.look_at(leaves["eye"], (0.1, 0.05, -0.1), fov=case.fov)
    else:
        camera = Camera.orthographic(leaves["eye"], (0.1, 0.05, -0.1), height=3.0)
    options = {"two_sided": case.two_sided, "epsilon": case.epsilon, "depth_steepness": leaves["depth_steepness"]}
    if case.function == "render_attributes":
        rows = torch.arange(len(faces)).unsqueeze(-1).expand(-1, 3) if case.by_face else None
        out = render_attributes(
            leaves["vertices"], faces, leaves["attributes"], camera, size=case.size, attribute_faces=rows,
            background=leaves["background"], background_depth=7.0, coverage=coverage, conorm=conorm, backend=backend, **options,
        )  # fmt: skip
        return out._asdict()
    looks: dict[str, Any] = {}
    if case.colours in ("vertex", "face"):
        looks = {f"{case.colours}_colors": leaves["colours"]}
    elif case.colours == "texture":
        looks = {"texture": leaves["colours"], "uv": leaves["uv"]}
    renderer = SmoothRenderer(
        case.size, coverage, conorm, surface=eval(case.surface, NAMES), shading=case.shading, background=0.3,
        background_depth=7.0, backend=backend, **options,
    )  # fmt: skip
    renderer = renderer.to(leaves["vertices"].dtype)
    out = renderer(
        Mesh(leaves["vertices"], faces, **looks), camera, eval(LIGHTS[case.lights], NAMES), leaves["vertices"]
    )
    return out._asdict()


def _mesh(kind: str, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    if kind in ("triangle", "soup", "needles"):
        count = 1 if kind == "triangle" else 6
        corners = torch.randn(count, 3, 3, generator=generator, dtype=torch.float64)
        if kind == "needles":
            corners = corners * torch.tensor([1.0, 1e-3, 1.0], dtype=torch.float64)
        return corners.reshape(-1, 3), torch.arange(3 * count).reshape(count, 3)
    if kind == "fan":
        rim = torch.randn(5, 3, generator=generator, dtype=torch.float64)
        faces = torch.tensor([[0, i, i % 5 + 1] for i in range(1, 6)])
        return torch.cat([torch.zeros(1, 3, dtype=torch.float64), rim]), faces
    mesh = {
        "icosphere": lambda: render.icosphere(0),
        "box": render.box,
        "torus": lambda: render.torus(segments=(5, 4)),
    }[kind]()
    return mesh.vertices.double(), mesh.faces.long()


def _laid_out(t: Tensor, other: bool) -> Tensor:
    """The same numbers, every second one of a larger tensor where asked for."""
    return torch.stack([t, torch.full_like(t, torch.nan)], -1)[..., 0] if other and t.dim() else t
