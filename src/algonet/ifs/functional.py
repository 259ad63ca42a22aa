"""Public functions: the smooth raster of a point cloud, and the chaos game."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from algonet.core import tracing
from algonet.core.checks import broadcast_shapes, check_integer, check_size, check_spec, widened
from algonet.core.identity import PLANS, signature
from algonet.core.memory import check_memory
from algonet.core.tracing import outside_autocast, readable
from algonet.relax import GaussianNoise, Probabilistic

from .checks import Aggregate, Extent, check_aggregate, check_extent, check_noise, check_sigma, parameters_of
from .operation import CHAOS, RASTER, ChaosSettings, RasterSettings
from .reference import splat_separable

_METHODS = ("auto", "windows", "separable")


@outside_autocast
def smooth_raster(
    points: Tensor,
    size: tuple[int, int],
    *,
    sigma: float | Tensor | None = None,
    noise: GaussianNoise = GaussianNoise(1.0),
    extent: Extent = (0.0, 1.0, 0.0, 1.0),
    aggregate: Aggregate = Probabilistic(),
    weights: Tensor | None = None,
    colours: Tensor | None = None,
    epsilon: float = 1e-4,
    method: str = "auto",
    deterministic: bool | None = None,
    backend: str = "auto",
) -> Tensor:
    """The picture of a cloud of points, each of which is a Gaussian: smooth in every coordinate.

    A point's share of a pixel is its Gaussian's mass in that pixel's area, a product of two differences of the normal
    distribution function, times its weight. With q = share (`Poisson`) or q = -log(1 - share) (`Probabilistic`) a pixel
    is 1 - exp(-sum q); with `colours` it is (1 - exp(-sum q)) times the mean colour weighted by q, over black (append a
    channel of ones to get the coverage too). Hard limit: sigma -> 0 marks the pixels that hold a point.

    points (*batch, N, 2) with y up, weights (*batch, N), colours (*batch, N, C), noise whose scale is in pixels (a number,
    or a tensor that broadcasts to *batch; `sigma=s` is short for `noise=GaussianNoise(s)`) give (*batch, H, W),
    or (*batch, C, H, W) with colours. The top row is the largest y.
    Infinitely often differentiable in points, sigma, weights and colours.

    `method="windows"` visits the pixels within a square outside of which a point has the mass `epsilon`: each point
    loses at most that share, whatever the kernel. Cost N min(H W, (8 sigma)^2), memory one picture per block of points.
    `method="separable"` is one matrix product over the points (`Poisson` only): exact, cost N H W, for huge sigma.
    "auto" takes the cheaper. `deterministic` makes GPU sums reproducible (default: torch's own setting).

    >>> smooth_raster(torch.tensor([[0.5, 0.9]]), (3, 3), sigma=0.01).round()
    tensor([[0., 1., 0.],
            [0., 0., 0.],
            [0., 0., 0.]])
    """
    if deterministic is None:
        deterministic = torch.are_deterministic_algorithms_enabled()
    if not isinstance(noise, GaussianNoise):
        check_noise("smooth_raster", noise)
    sigma = noise.scale if sigma is None else sigma
    learned = sigma if isinstance(sigma, Tensor) else None  # a number of softness is in no signature
    options = size, extent, epsilon, method, deterministic, backend
    key = signature("smooth_raster", points, learned, aggregate, weights, colours, *options)
    run = None if key is None else PLANS.find(key)
    if run is None:
        run = _Raster(points, sigma, aggregate, weights, colours, options)
        if key is not None:
            PLANS.put(key, run)
    return run(points, sigma, weights, colours)


class _Raster:
    """Pictures of one signature: what their checks found, and what is left to do with their tensors."""

    def __init__(
        self,
        points: Any,
        sigma: Any,
        aggregate: Aggregate,
        weights: Tensor | None,
        colours: Tensor | None,
        options: tuple,
    ):
        where = "smooth_raster"
        size, extent, epsilon, self.method, deterministic, self.backend = options
        height, width = check_size(where, size)
        self.extent = check_extent(where, extent)
        logs = check_aggregate(where, aggregate)
        check_spec(where, "points", points, "*batch N 2")
        self.count, self.dtype = points.shape[-2], points.dtype
        if not 0 < epsilon < 1:
            raise ValueError(f"{where}: `epsilon` must lie in (0, 1), got {epsilon!r}.")
        wide = widened(points)
        shapes = [points.shape[:-2], check_sigma(where, sigma, wide).shape]
        if weights is not None:
            check_spec(where, "weights", weights, f"*batch {self.count}", "", ": one per point")
            shapes.append(weights.shape[:-1])
        if colours is not None:
            check_spec(where, "colours", colours, f"*batch {self.count} C", "", ": one per point")
            shapes.append(colours.shape[:-2])
        self.batch = broadcast_shapes(*shapes)
        pictures = math.prod(self.batch) * (1 if colours is None else 1 + colours.shape[-1]) * height * width
        check_memory(where, f"a picture of {height} x {width}", pictures * wide.element_size(), wide.device)
        if self.method not in _METHODS:
            raise ValueError(f"{where}: unknown method {self.method!r}; choose one of {', '.join(_METHODS)}.")
        if self.method == "separable" and logs:
            raise ValueError(f'{where}: method="separable" sums shares: use aggregate=Poisson(), or method="windows".')
        self.settings = RasterSettings(height, width, logs, float(epsilon), bool(deterministic))
        self.choosing = self.method == "auto" and self.backend == "auto" and not logs and self.count > 0
        self.windows: Callable[..., Any] | None = None

    def __call__(self, points: Tensor, sigma: Any, weights: Tensor | None, colours: Tensor | None) -> Tensor:
        settings, batch, (x0, x1, y0, y1) = self.settings, self.batch, self.extent
        wide = points.float() if points.dtype in (torch.float16, torch.bfloat16) else points
        ready = isinstance(sigma, Tensor) and sigma.dtype == wide.dtype and sigma.device == wide.device
        spread = sigma if ready else check_sigma("smooth_raster", sigma, wide)
        # kept as tensor arithmetic on each axis: an extent of 1e-30 must not overflow the quotient
        across = (wide[..., 0] - x0) / (x1 - x0) * settings.width
        down = (y1 - wide[..., 1]) / (y1 - y0) * settings.height
        tensors = (
            torch.stack([across, down], dim=-1).expand(*batch, self.count, 2),
            spread.expand(batch),
            wide.new_empty(*batch, 0) if weights is None else weights.to(wide).expand(*batch, self.count),
            wide.new_empty(*batch, self.count, 0)
            if colours is None
            else colours.to(wide).expand(*batch, *colours.shape[-2:]),
        )
        if self.method == "separable" or (self.choosing and separable_is_cheaper(points, settings, sigma)):
            sums = splat_separable(*tensors, (settings.height, settings.width))
        else:
            if self.windows is None:
                self.windows = RASTER.bind(tensors, settings, self.backend)
            sums = self.windows(tensors)[0]
        total = sums[..., 0, :, :]
        if colours is None:
            return -torch.expm1(-total).to(self.dtype)
        return (_coverage_per_sum(total)[..., None, :, :] * sums[..., 1:, :, :]).to(self.dtype)


def chaos_game(
    ifs: nn.Module | Tensor,
    choices: Tensor,
    start: Tensor | None = None,
    *,
    burn_in: int = 0,
    horizon: int | None = None,
    backend: str = "auto",
) -> Tensor:
    """All points that chains of randomly chosen maps visit: x_{t+1} = f_{choice_t}(x_t), many chains side by side.

    The choices are given, so the points are a smooth function of the parameters and of the start. `ifs` is an `IFS` or
    its parameters (*batch, n, 6) in the residual form; choices (chains, steps) or (*batch, chains, steps) are integers
    below n; start (chains, 2) or (*batch, chains, 2), the origin by default. The result is
    (*batch, chains * (steps - burn_in), 2), chain after chain.

    Differentiable through all steps, or through at most `horizon` of them: before every horizon-th step the gradient
    is cut. Coordinates are clamped at 1e12, so that a divergent system gives large numbers and no NaN. Cost: 4 products
    per point; memory: all states.

    >>> halves = torch.tensor([[0.0, -0.5, 0.0, 0.0, 0.0, -0.5], [0.5, -0.5, 0.0, 0.0, 0.0, -0.5]])
    >>> chaos_game(halves, torch.tensor([[1, 0, 1]]))[:, 0]
    tensor([0.5000, 0.2500, 0.6250])
    """
    parameters: Any = ifs if isinstance(ifs, Tensor) else getattr(ifs, "maps", ifs)
    key = signature("chaos_game", parameters, choices, start, burn_in, horizon, backend)
    run = None if key is None else PLANS.find(key)
    if run is None:
        run = _Chaos(parameters_of("chaos_game", ifs), choices, start, burn_in, horizon, backend)
        if key is not None:
            PLANS.put(key, run)
    return run(parameters, choices, start)


class _Chaos:
    """Chaos games of one signature: what their checks found, and what is left to do with their tensors."""

    def __init__(
        self, parameters: Tensor, choices: Tensor, start: Any, burn_in: int, horizon: int | None, backend: str
    ):
        where = "chaos_game"
        self.functions, self.dtype, self.backend = parameters.shape[-2], parameters.dtype, backend
        check_spec(where, "choices", choices, "*batch chains steps", "integer ")
        self.shape = chains, steps = choices.shape[-2:]
        self.states = chains, 2
        burn_in = check_integer(where, "burn_in", burn_in, 0, steps)
        if horizon is not None:
            horizon = check_integer(where, "horizon", horizon, 1)
        if start is not None:
            check_spec(where, "start", start, f"*batch {chains} 2", "", f": 2 coordinates of {chains} chains")
        self.batch = broadcast_shapes(
            parameters.shape[:-2], choices.shape[:-2], () if start is None else start.shape[:-2]
        )
        self.settings = ChaosSettings(burn_in, horizon or 0)
        self.run: Callable[..., Any] | None = None

    def __call__(self, parameters: Tensor, choices: Tensor, start: Tensor | None) -> Tensor:
        # On a GPU, and under tracing, reading values would synchronise: the kernels clamp them into range instead
        plain = type(choices) in tracing.TENSORS and tracing.interpreter() is None and not tracing.compiling()
        if plain and choices.device.type == "cpu" and choices.numel():
            low, high = map(int, torch.aminmax(choices))
            if low < 0 or high >= self.functions:
                raise ValueError(
                    f"chaos_game: `choices` must lie in 0 .. {self.functions - 1}, got values from {low} to {high}."
                )
        wide = parameters.float() if parameters.dtype in (torch.float16, torch.bfloat16) else parameters
        begin = wide.new_zeros(self.states) if start is None else start.to(wide.dtype)
        tensors = [
            wide.expand(*self.batch, *wide.shape[-2:]),
            choices.expand(*self.batch, *self.shape),
            begin.expand(*self.batch, *self.states),
        ]
        if self.run is None:
            self.run = CHAOS.bind(tensors, self.settings, self.backend)
        return self.run(tensors)[0].flatten(-3, -2).to(self.dtype)


def _coverage_per_sum(total: Tensor) -> Tensor:
    """(1 - exp(-t)) / t, which is 1 at 0: smooth there, so no pixel divides by an empty sum."""
    small = total.abs() < 1e-2
    safe = torch.where(small, 1.0, total)
    t = torch.where(small, total, 0.0)
    series = 1 - t / 2 * (1 - t / 3 * (1 - t / 4 * (1 - t / 5 * (1 - t / 6))))
    return torch.where(small, series, -torch.expm1(-safe) / safe)


def separable_is_cheaper(points: Tensor, settings: RasterSettings, sigma: float | Tensor) -> bool:
    """Whether one matrix product over all pixels beats the windows; only where sigma is known without a look at a GPU."""
    if not isinstance(sigma, (int, float)):
        if sigma.dim() or not readable(sigma):
            return False
        sigma = sigma.item()
    side = 2 * math.sqrt(-2 * math.log(settings.epsilon)) * float(sigma) + 1
    window = min(side, settings.height) * min(side, settings.width)
    pixels, edges = settings.height * settings.width, settings.height + settings.width
    if points.numel() // 2 * edges * points.element_size() > 2**28:
        return False
    # nanoseconds per point, fitted to timings: a pixel of a window, of a product, and an entry of the two factors
    pixel, product, entry = (0.15, 0.04, 10.0) if points.device.type == "cpu" else (0.003, 1e-5, 0.05)
    return pixel * window > product * pixels + entry * edges
