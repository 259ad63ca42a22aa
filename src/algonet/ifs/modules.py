"""`IFS`: an iterated function system as a module, whose picture is a smooth function of its parameters."""

from __future__ import annotations

import json
import math
import os
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor, nn

from algonet.core.checks import check_integer, check_size, check_spec
from algonet.core.files import read_json, write_text
from algonet.core.identity import PLANS, signature
from algonet.core.memory import check_memory
from algonet.relax import GaussianNoise, SoftModule

from .checks import Aggregate, Extent, Poisson, check_extent, check_noise, parameters_of
from .functional import chaos_game, smooth_raster
from .maps import area_weights, contraction, draw_addresses, draw_choices, map_norms
from .presets import preset

#: A file with more is refused; a thousand times the usual, and 10 GB of choices.
MOST_POINTS_IN_A_FILE = 2**24
#: A picture is white long before, and every number of it stays finite in float32.
MOST_EXPOSURE, MOST_COLOUR = 1e6, 1e12


class IFS(SoftModule):
    """n affine maps in the paper's residual form, (x + a1 + a2 x + a3 y, y + a4 + a5 x + a6 y), and their attractor.

    `parameters` (n, 6); `weights` (n) are the odds of choosing each map (default: what it does to areas); `colours` (n, C)
    the colours of its points. The choices are drawn once, from `seed`, and kept: the picture is a deterministic, infinitely
    often differentiable function of the parameters. `redraw()` draws others. `bound` < 1 scales maps smoothly so that
    they contract (see `contraction`); without it a system that does not contract on average is refused.

    Unless told otherwise each point is the end of a chain of its own, which fills the attractor most evenly. With `chains` the
    points are all that so many chains pass through once they have forgotten their start: the paper's "plot every
    intermediate step".

    Called, it draws: `ifs((H, W))`. Each point is blurred by `noise`, whose `scale` in pixels is the softness: it is in the
    `state_dict`, is annealed or learned, and `sigma=...` takes its place for one picture. Each of its `points` counts for
    `exposure` * H W / points, so its brightness does not depend on how many there are. Hard limit: `crisp((H, W))`.

    >>> fern = IFS.preset("fern", points=4096)
    >>> fern((64, 64)).shape, fern.crisp((64, 64)).unique()
    (torch.Size([64, 64]), tensor([0., 1.]))
    """

    #: What takes features as its maps, for the error where this is put between layers.
    as_layer = "IFSInverse(functions, size), from algonet.ran"
    choices: Tensor
    odds: Tensor
    start: Tensor
    scale: Tensor

    def __init__(
        self,
        parameters: Tensor,
        *,
        weights: Tensor | None = None,
        colours: Tensor | None = None,
        extent: Extent | None = None,
        bound: float | None = None,
        exposure: float = 1.0,
        points: int = 16384,
        chains: int | None = None,
        seed: int = 0,
        noise: GaussianNoise = GaussianNoise(1.0),
    ):
        check_noise("IFS", noise)
        super().__init__(noise)
        parameters = parameters_of("IFS", parameters)
        if parameters.ndim != 2:
            raise ValueError(f"IFS: parameters must be (n, 6), got {tuple(parameters.shape)}.")
        if not torch.isfinite(parameters).all():
            raise ValueError("IFS: parameters must be finite, got NaN or infinity; check what made them.")
        points = check_integer("IFS", "points", points, 1)
        if not 0 < exposure <= MOST_EXPOSURE:
            raise ValueError(f"IFS: `exposure` must be above 0 and at most {MOST_EXPOSURE:g}, got {exposure!r}.")
        self.parameters_ = nn.Parameter(parameters.detach().clone())
        self.bound, self.exposure = bound, float(exposure)
        self.register_buffer("odds", self._check_odds(weights))
        self.colours = None if colours is None else nn.Parameter(self._check_colours(colours))
        self._check_contraction()
        #: Steps of each chain that are not drawn.
        self.burn_in = self._depth() - (chains is None)
        self.chains = None if chains is None else check_integer("IFS", "chains", chains, 1, points)
        rows = self.chains or points
        steps = self.burn_in + -(-points // rows)
        # Choices, the start, and what draws them
        check_memory("IFS", f"{points} points", rows * (9 * steps + 40), parameters.device)
        # The number of a map as small as can be: there are as many as points times steps
        kind = torch.uint8 if self.functions <= 256 else torch.int32
        self.register_buffer("choices", torch.zeros(rows, steps, dtype=kind, device=parameters.device))
        self.register_buffer("start", parameters.new_zeros(rows, 2))
        self.redraw(seed)
        self.extent = check_extent("IFS", extent) if extent is not None else self._bounding_box()

    @classmethod
    def preset(cls, name: str, **options: Any) -> IFS:
        """One of the famous systems: fern, sierpinski, dragon, tree, maple, levy, koch, carpet, ..."""
        known = preset(name)
        weights = None if known.weights is None else torch.tensor(known.weights)
        return cls(known.parameters(), **{"weights": weights, "extent": known.extent, **options})

    @property
    def functions(self) -> int:
        """How many maps there are."""
        return self.parameters_.shape[0]

    @property
    def maps(self) -> Tensor:
        """The parameters of the maps as they act: (n, 6), contracted where there is a `bound`."""
        return self.parameters_ if self.bound is None else contraction(self.parameters_, self.bound)

    def redraw(self, seed: int | None = None) -> None:
        """Draw the choices anew, from `seed` or a fresh one: another, equally good sample of the same picture."""
        seed = int(torch.randint(2**31, ())) if seed is None else int(seed)
        generator = torch.Generator().manual_seed(seed)
        draw = draw_choices if self.chains else draw_addresses
        drawn = draw(self.odds.cpu(), len(self.choices), self.choices.shape[1], generator)
        self.seed = seed
        self.choices.copy_(drawn.to(self.choices))

    def points(self, *, horizon: int | None = None) -> Tensor:
        """What is drawn, (points, 2): the end of each chain, or all that `chains` pass; differentiable in the parameters."""
        return chaos_game(self.maps, self.choices, self.start, burn_in=self.burn_in, horizon=horizon)

    def _count(self) -> int:
        return len(self.choices) * (self.choices.shape[1] - self.burn_in)

    def forward(
        self,
        size: int | tuple[int, int],
        *,
        sigma: float | Tensor | None = None,
        extent: Extent | None = None,
        aggregate: Aggregate = Poisson(),
        backend: str = "auto",
    ) -> Tensor:
        """The smooth picture (H, W), or (C, H, W) with colours. With `Probabilistic` every point counts once."""
        wanted = self.extent if extent is None else extent
        key = signature("IFS", size, wanted)
        view = None if key is None else PLANS.find(key)
        if view is None:
            shape = check_size("IFS", size)
            view = shape, fitted_extent(wanted, *shape)
            if key is not None:
                PLANS.put(key, view)
        (height, width), shown = view
        points = self.points()
        weights = None
        if isinstance(aggregate, Poisson):
            weights = points.new_full((len(points),), self.exposure * height * width / len(points))
        colours = None if self.colours is None else self.colours[self.choices[:, self.burn_in :].flatten().long()]
        return smooth_raster(
            points, (height, width), sigma=sigma, noise=cast(GaussianNoise, self.relax),
            extent=shown, aggregate=aggregate,
            weights=weights, colours=colours, backend=backend,
        )  # fmt: skip

    if TYPE_CHECKING:
        __call__ = forward

    @torch.no_grad()
    def crisp(self, size: int | tuple[int, int], *, points: int = 200_000, extent: Extent | None = None) -> Tensor:
        """The ordinary chaos game: 1 where one of `points` falls into the pixel, else 0. The limit of sigma -> 0."""
        height, width = check_size("IFS.crisp", size)
        chains, burn_in = 4096, self._depth()
        steps = burn_in + max(1, math.ceil(points / chains))
        needed = 4 * height * width + 64 * chains * steps
        check_memory("IFS.crisp", f"{points} points in a picture of {height} x {width}", needed, self.odds.device)
        choices = draw_choices(self.odds, chains, steps, torch.Generator().manual_seed(self.seed)).to(self.odds.device)
        cloud = chaos_game(self.maps, choices, burn_in=burn_in)
        x0, x1, y0, y1 = fitted_extent(extent or self.extent, height, width)
        column = ((cloud[:, 0] - x0) / (x1 - x0) * width).floor().clamp(-1, width).long()
        row = ((y1 - cloud[:, 1]) / (y1 - y0) * height).floor().clamp(-1, height).long()
        inside = (column >= 0) & (column < width) & (row >= 0) & (row < height)
        picture = cloud.new_zeros(height, width)
        picture.view(-1)[row[inside] * width + column[inside]] = 1.0
        return picture

    def to_dict(self) -> dict[str, Any]:
        """Everything that defines the picture, as plain numbers: what `save` writes."""
        return {
            "format": "algonet-ifs",
            "version": 2,
            "parameters": self.parameters_.detach().cpu().double().tolist(),
            "bound": self.bound,
            "dtype": str(self.parameters_.dtype).removeprefix("torch."),
            "weights": self.odds.cpu().double().tolist(),
            "colours": None if self.colours is None else self.colours.detach().cpu().double().tolist(),
            "extent": list(self.extent),
            "exposure": self.exposure,
            "points": self._count(),
            "chains": self.chains,
            "seed": self.seed,
            "scale": float(self.scale.detach()),
        }

    def to_json(self) -> str:
        """The text of the file that `save` writes."""
        return json.dumps(self.to_dict(), indent=2)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the system as JSON, under a temporary name first."""
        write_text(path, self.to_json())

    @classmethod
    def load(cls, path: str | os.PathLike[str], **options: Any) -> IFS:
        """Read what `save` wrote; a broken file gives one line that names it."""
        try:
            content = read_json(path)
            if content.get("format") != "algonet-ifs":
                raise ValueError("it is not an algonet-ifs file")
            if content.get("version", 1) not in (1, 2):
                raise ValueError(f"versions 1 and 2 can be read, it is of {str(content['version'])[:20]!r}")
            dtype = _dtype(content.get("dtype", "float32"))
            colours = content.get("colours")
            read = {
                "weights": torch.tensor(content["weights"], dtype=dtype),
                "colours": None if colours is None else torch.tensor(colours, dtype=dtype),
                "extent": tuple(content["extent"]),
                "exposure": float(content["exposure"]),
                "seed": int(content["seed"]),
                # Files of the first version do not say
                "bound": content.get("bound"),
                "noise": GaussianNoise(float(content.get("scale", 1.0))),
                # A file does not get to ask for all the memory there is
                **{
                    name: check_integer("IFS", name, content[name], 1, MOST_POINTS_IN_A_FILE)
                    for name in ("points", "chains")
                    if content.get(name) is not None
                },
            }
            return cls(torch.tensor(content["parameters"], dtype=dtype), **{**read, **options})
        except OSError:
            raise
        except (ValueError, TypeError, KeyError, AttributeError, RuntimeError, OverflowError) as error:
            reason = f"missing {error}" if isinstance(error, KeyError) else str(error).splitlines()[0]
            raise ValueError(f"{path}: cannot read an iterated function system: {reason}") from None

    def _repr_png_(self) -> bytes:
        """In a notebook: the picture, dark on white."""
        from algonet.core.pictures import png_bytes

        with torch.no_grad():
            picture = self(240)
        return png_bytes(1 - picture if picture.ndim == 2 else picture.movedim(0, -1)[..., :3])

    def extra_repr(self) -> str:
        drawn = f"{self.functions} functions, {self._count()} points, seed {self.seed}"
        return f"{drawn}, {super().extra_repr()}"

    def _depth(self) -> int:
        """Steps after which the start is forgotten to within a thousandth, between 16 and 64."""
        return max(16, min(64, math.ceil(7 / max(-self._growth(), 0.01))))

    @torch.no_grad()
    def _growth(self) -> float:
        """The mean logarithm of how much a chosen map stretches distances."""
        return float((self.odds * map_norms(self.maps).log()).sum())

    def _check_odds(self, weights: Tensor | None) -> Tensor:
        if weights is None:
            return area_weights(self.maps.detach())
        odds = torch.as_tensor(weights).detach().to(self.parameters_)
        if odds.shape != (self.functions,) or not bool((odds >= 0).all()) or not 0 < float(odds.sum()) < math.inf:
            raise ValueError(
                f"IFS: `weights` must be {self.functions} numbers >= 0, one per function and not all 0, got {weights!r}."
            )
        return odds / odds.sum()

    def _check_colours(self, colours: Tensor) -> Tensor:
        check_spec("IFS", "colours", colours, f"{self.functions} C", "", "; one row per function")
        if not bool((colours.abs() <= MOST_COLOUR).all()):
            raise ValueError(f"IFS: `colours` must lie between -{MOST_COLOUR:g} and {MOST_COLOUR:g}, got {colours!r}.")
        return colours.detach().to(self.parameters_)

    def _check_contraction(self) -> None:
        if self._growth() >= 0:
            norms = map_norms(self.maps.detach())
            worst = int(norms.argmax())
            raise ValueError(
                f"IFS: the maps do not contract on average, points would run away (function {worst} stretches by "
                f"{float(norms[worst]):.3g}); pass bound=0.97 to scale them, or change the parameters."
            )

    @torch.no_grad()
    def _bounding_box(self) -> Extent:
        """A square around the attractor with a margin of 5 %."""
        cloud = self.points().double()
        low, high = cloud.amin(0), cloud.amax(0)
        half = max(float((high - low).max()) * 0.55, 1e-3)
        x, y = ((low + high) / 2).tolist()
        return (x - half, x + half, y - half, y + half)


def _dtype(name: Any) -> torch.dtype:
    found: Any = getattr(torch, name, None) if isinstance(name, str) else None
    if not isinstance(found, torch.dtype) or not found.is_floating_point:
        raise ValueError(f"unknown precision {name!r}")
    return found


def fitted_extent(extent: Extent, height: int, width: int) -> Extent:
    """The smallest rectangle of the picture's shape around `extent`, with the same centre: pixels stay square."""
    x0, x1, y0, y1 = check_extent("IFS", extent)
    pixel = max((x1 - x0) / width, (y1 - y0) / height)
    x, y = (x0 + x1) / 2, (y0 + y1) / 2
    return (x - pixel * width / 2, x + pixel * width / 2, y - pixel * height / 2, y + pixel * height / 2)
