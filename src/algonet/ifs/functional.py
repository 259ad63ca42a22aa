"""Public functions: the smooth raster of a point cloud, and the chaos game."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from algonet.core.checks import broadcast_shapes, check_integer, check_size, widened
from algonet.core.memory import check_memory
from algonet.core.tracing import outside_autocast, readable
from algonet.relax import GaussianNoise, Probabilistic

from .aggregates import Aggregate, check_aggregate
from .checks import (
    Extent,
    check_choices,
    check_extent,
    check_noise,
    check_sigma,
    check_trailing,
    parameters_of,
)
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
    sigma = check_noise("smooth_raster", noise, sigma)
    tensors, settings = _raster_call(points, size, sigma, extent, aggregate, weights, colours, epsilon, deterministic)
    if method not in _METHODS:
        raise ValueError(f"smooth_raster: unknown method {method!r}; choose one of {', '.join(_METHODS)}.")
    if method == "separable" and settings.logs:
        raise ValueError('smooth_raster: method="separable" sums shares: use aggregate=Poisson(), or method="windows".')
    cheaper = method == "auto" and backend == "auto" and _separable_is_cheaper(tensors[0], settings, sigma)
    if method == "separable" or cheaper:
        sums = splat_separable(*tensors, (settings.height, settings.width))
    else:
        sums = RASTER(tensors, settings, backend)[0]
    total = sums[..., 0, :, :]
    if colours is None:
        return -torch.expm1(-total).to(points.dtype)
    return (_coverage_per_sum(total)[..., None, :, :] * sums[..., 1:, :, :]).to(points.dtype)


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
    its parameters (*batch, n, 6) or (*batch, n, 12) in the residual form; choices (chains, steps) or (*batch, chains,
    steps) are integers below n; start (chains, D) or (*batch, chains, D), the origin by default. The result is
    (*batch, chains * (steps - burn_in), D), chain after chain.

    Differentiable through all steps, or through at most `horizon` of them: before every horizon-th step the gradient
    is cut. Coordinates are clamped at 1e12, so that a divergent system gives large numbers and no NaN. Cost: 4 products
    per point; memory: all states.

    >>> halves = torch.tensor([[0.0, -0.5, 0.0, 0.0, 0.0, -0.5], [0.5, -0.5, 0.0, 0.0, 0.0, -0.5]])
    >>> chaos_game(halves, torch.tensor([[1, 0, 1]]))[:, 0]
    tensor([0.5000, 0.2500, 0.6250])
    """
    parameters = parameters_of("chaos_game", ifs)
    dimension = 2 if parameters.shape[-1] == 6 else 3
    choices = check_choices(choices, parameters)
    chains, steps = choices.shape[-2:]
    burn_in = check_integer("chaos_game", "burn_in", burn_in, 0, steps)
    if horizon is not None:
        horizon = check_integer("chaos_game", "horizon", horizon, 1)
    dtype = parameters.dtype
    wide = widened(parameters)
    begin: Any = wide.new_zeros(chains, dimension) if start is None else start
    if begin.ndim < 2 or tuple(begin.shape[-2:]) != (chains, dimension):
        raise ValueError(
            f"chaos_game: `start` must be ({chains} chains, {dimension} coordinates), got {tuple(begin.shape)}."
        )
    batch = broadcast_shapes(wide.shape[:-2], choices.shape[:-2], begin.shape[:-2])
    tensors = [
        wide.expand(*batch, *wide.shape[-2:]),
        choices.expand(*batch, chains, steps),
        begin.to(wide.dtype).expand(*batch, chains, dimension),
    ]
    return CHAOS(tensors, ChaosSettings(burn_in, horizon or 0), backend)[0].flatten(-3, -2).to(dtype)


def _raster_call(
    points: Tensor,
    size: tuple[int, int],
    sigma: float | Tensor,
    extent: Extent,
    aggregate: Aggregate,
    weights: Tensor | None,
    colours: Tensor | None,
    epsilon: float,
    deterministic: bool | None,
) -> tuple[tuple[Tensor, Tensor, Tensor, Tensor], RasterSettings]:
    where = "smooth_raster"
    height, width = check_size(where, size)
    x0, x1, y0, y1 = check_extent(where, extent)
    logs = check_aggregate(where, aggregate)
    if not isinstance(points, Tensor) or not points.is_floating_point() or points.ndim < 2 or points.shape[-1] != 2:
        got = tuple(points.shape) if isinstance(points, Tensor) else type(points).__name__
        kind = f" of {points.dtype}" if isinstance(points, Tensor) else ""
        raise ValueError(f"{where}: `points` must be a floating tensor (*batch, N, 2), got {got}{kind}.")
    if not 0 < epsilon < 1:
        raise ValueError(f"{where}: `epsilon` must lie in (0, 1), got {epsilon!r}.")
    wide = widened(points)
    count = points.shape[-2]
    spread = check_sigma(where, sigma, wide)
    # kept as tensor arithmetic on each axis: an extent of 1e-30 must not overflow the quotient
    across = (wide[..., 0] - x0) / (x1 - x0) * width
    down = (y1 - wide[..., 1]) / (y1 - y0) * height
    shapes = [points.shape[:-2], spread.shape]
    if weights is not None:
        check_trailing(where, "weights", weights, (count,))
        shapes.append(weights.shape[:-1])
    if colours is not None:
        check_trailing(where, "colours", colours, (count, -1))
        shapes.append(colours.shape[:-2])
    batch = broadcast_shapes(*shapes)
    channels = 1 + (0 if colours is None else colours.shape[-1])
    pictures = math.prod(batch) * channels * height * width
    check_memory(where, f"a picture of {height} x {width}", pictures * wide.element_size(), wide.device)
    if deterministic is None:
        deterministic = torch.are_deterministic_algorithms_enabled()
    none = wide.new_empty(*batch, 0)
    tensors = (
        torch.stack([across, down], dim=-1).expand(*batch, count, 2),
        spread.expand(batch),
        none if weights is None else weights.to(wide).expand(*batch, count),
        wide.new_empty(*batch, count, 0) if colours is None else colours.to(wide).expand(*batch, *colours.shape[-2:]),
    )
    return tensors, RasterSettings(height, width, logs, float(epsilon), bool(deterministic))


def _coverage_per_sum(total: Tensor) -> Tensor:
    """(1 - exp(-t)) / t, which is 1 at 0: smooth there, so no pixel divides by an empty sum."""
    small = total.abs() < 1e-2
    safe = torch.where(small, 1.0, total)
    t = torch.where(small, total, 0.0)
    series = 1 - t / 2 * (1 - t / 3 * (1 - t / 4 * (1 - t / 5 * (1 - t / 6))))
    return torch.where(small, series, -torch.expm1(-safe) / safe)


def _separable_is_cheaper(points: Tensor, settings: RasterSettings, sigma: float | Tensor) -> bool:
    """Whether one matrix product over all pixels beats the windows; only where sigma is known without a look at a GPU."""
    if settings.logs or points.numel() == 0:
        return False
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
