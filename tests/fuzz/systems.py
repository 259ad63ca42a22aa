"""Random function systems: points of chaos games and their pictures, kernels against the reference."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from algonet.ifs import Poisson, chaos_game, smooth_raster
from algonet.ifs.reference import axis_masses
from algonet.relax import Probabilistic

from .hunt import differs, gradients, simpler

SIMPLEST: dict[str, tuple[Any, ...]] = {
    "batch": ((), (1,), (2,)), "maps": (1, 2, 3), "chains": (1, 2), "steps": (1, 2, 3), "burn_in": (0, 1), "horizon": (None, 1),
    "size": ((2, 2), (1, 1), (5, 3)), "sigma": (1.0, 0.3, 0.01, 5.0), "poisson": (True,), "weighted": (False,),
    "colours": (0, 1), "spread": (0.5,), "dtype": ("float64",), "strided": (False,), "extent": ((0.0, 1.0, 0.0, 1.0),),
}  # fmt: skip


@dataclass(frozen=True)
class System:
    """A chaos game and the picture of its points; parameters and choices follow from the seed."""

    seed: int
    batch: tuple[int, ...]
    maps: int
    chains: int
    steps: int
    burn_in: int
    horizon: int | None
    size: tuple[int, int]
    sigma: float
    poisson: bool
    weighted: bool
    colours: int
    #: How far parameters are from the identity's; beyond 2 systems diverge.
    spread: float
    dtype: str
    strided: bool
    extent: tuple[float, float, float, float]

    def tensors(self) -> dict[str, Tensor]:
        generator = torch.Generator().manual_seed(self.seed)

        def uniform(*shape: int) -> Tensor:
            return torch.rand(*shape, generator=generator, dtype=torch.float64)

        points = self.chains * (self.steps - min(self.burn_in, self.steps))
        found = {
            "parameters": (uniform(*self.batch, self.maps, 6) - 0.5) * 2 * self.spread - 0.3,
            "start": uniform(self.chains, 2),
            "sigma": torch.tensor(self.sigma, dtype=torch.float64),
        }
        if self.weighted:
            found["weights"] = uniform(*self.batch, points)
        if self.colours:
            found["colours"] = uniform(*self.batch, points, self.colours)
        found = {name: t.to(getattr(torch, self.dtype)) for name, t in found.items()}
        if self.strided:
            found = {n: torch.stack([t, torch.full_like(t, torch.nan)], -1)[..., 0] for n, t in found.items()}
        choices = torch.randint(0, self.maps, (self.chains, self.steps), generator=generator)
        return {**found, "choices": choices}


class Systems:
    """The target. Its one way: the kernels' points, pictures and gradients are the reference's."""

    name = "systems"
    ways: tuple[str, ...] = ("kernel as reference",)

    def draw(self, seed: int) -> System:
        pick = random.Random(seed)
        steps = pick.choice((1, 2, 5, 12))
        return System(
            seed=seed,
            batch=pick.choice(((), (), (1,), (3,), (0,), (2, 2))),
            maps=pick.choice((1, 2, 3, 7, 300)),
            chains=pick.choice((1, 2, 5, 9)),
            steps=steps,
            burn_in=pick.randrange(steps + 1),
            horizon=pick.choice((None, 1, 3)),
            size=pick.choice(((1, 1), (4, 4), (5, 9), (16, 3))),
            sigma=pick.choice((0.01, 0.3, 1.0, 3.0, 50.0)),
            poisson=pick.random() < 0.5,
            weighted=pick.random() < 0.5,
            colours=pick.choice((0, 0, 1, 3)),
            spread=pick.choice((0.2, 0.5, 3.0)),
            dtype=pick.choice(("float64", "float64", "float32")),
            strided=pick.random() < 0.3,
            extent=pick.choice(((0.0, 1.0, 0.0, 1.0), (-2.0, 3.0, 1.0, 1.5))),
        )

    def compare(self, case: System, way: str) -> str | None:
        given = case.tensors()
        one, slopes = _run(case, given, "numba")
        wide = {name: t.double() if t.is_floating_point() else t for name, t in given.items()}
        other, truth = _run(case, wide, "reference")
        values, moved = (1e-9, 1e-8) if case.dtype == "float64" else (2e-3, 2e-2)
        if case.dtype == "float32":
            # Rounded positions, in units of sigma
            values, moved = (t * max(1.0, 0.1 / case.sigma) for t in (values, moved))
        rounded = _rounding(case, other["points"].detach())
        values, moved = values + rounded, moved + rounded
        for name in one:
            problem = differs(name, one[name], other[name], values)
            if problem:
                return problem
        for name in slopes:
            problem = differs(f"gradient of {name}", slopes[name], truth[name], moved)
            if problem:
                return problem
        return None

    def smaller(self, case: System) -> Iterator[System]:
        for candidate in simpler(case, SIMPLEST):
            candidate = dataclasses.replace(candidate, burn_in=min(candidate.burn_in, candidate.steps))
            if candidate != case:
                yield candidate

    def snippet(self, case: System, way: str) -> str:
        text = ",\n    ".join(f"{f.name}={getattr(case, f.name)!r}" for f in dataclasses.fields(case))
        listed = "\n".join(f"# {name} = {t.tolist()}" for name, t in case.tensors().items() if t.numel() < 50)
        head = "from fuzz.hunt import failure\nfrom fuzz.systems import System, Systems\n\n"
        return f"{head}system = System(\n    {text},\n)\n{listed}\nprint(failure(Systems(), system))\n"


def _run(case: System, given: dict[str, Tensor], backend: str) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    leaves = {n: t.detach().requires_grad_(t.is_floating_point()) for n, t in given.items()}
    points = chaos_game(
        leaves["parameters"], leaves["choices"], leaves["start"], burn_in=case.burn_in, horizon=case.horizon, backend=backend
    )  # fmt: skip
    picture = smooth_raster(
        points, case.size, sigma=leaves["sigma"], extent=case.extent, aggregate=Poisson() if case.poisson else Probabilistic(),
        weights=leaves.get("weights"), colours=leaves.get("colours"), epsilon=1e-13, method="windows", backend=backend,
    )  # fmt: skip
    found = {"points": points, "picture": picture}
    names = [name for name, t in leaves.items() if t.requires_grad]
    # Points of a divergent system are far too large for a functional of both
    outputs = [picture] if case.spread > 1 else [points, picture]
    return found, dict(zip(names, gradients(outputs, [leaves[n] for n in names], case.seed), strict=True))


def _rounding(case: System, points: Tensor) -> float:
    """How far rounding can move mean colours: their weights -log(1 - share) have few digits where a share is nearly 1."""
    if case.poisson or not case.colours or not points.numel():
        return 0.0
    eps = torch.finfo(getattr(torch, case.dtype)).eps
    (height, width), (x0, x1, y0, y1) = case.size, case.extent
    sigma = torch.tensor(case.sigma, dtype=points.dtype).expand(points.shape[:-2])
    across = axis_masses((points[..., 0] - x0) / (x1 - x0) * width, sigma, width).amax(-1)
    down = axis_masses((y1 - points[..., 1]) / (y1 - y0) * height, sigma, height).amax(-1)
    return 10 * eps / max(1 - float((across * down).max()), eps)
