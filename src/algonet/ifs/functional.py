"""Public functions: the smooth raster of a point cloud, the chaos game, and the bound that keeps maps contractive."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from algonet import backends
from algonet.relax import Probabilistic

from . import reference
from .aggregates import Aggregate, check_aggregate
from .calls import ChaosCall, SplatCall
from .kernels.settings import ChaosSettings, SplatSettings

if TYPE_CHECKING:
    from .modules import IFS

Extent = tuple[float, float, float, float]
_METHODS = ("auto", "windows", "separable")


def smooth_raster(
    points: Tensor,
    size: tuple[int, int],
    *,
    sigma: float | Tensor = 1.0,
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

    points (*batch, N, 2) with y up, weights (*batch, N), colours (*batch, N, C), sigma in pixels (a number, or a tensor
    that broadcasts to *batch) give (*batch, H, W), or (*batch, C, H, W) with colours. The top row is the largest y.
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
    call, dtype = _splat_call(points, size, sigma, extent, aggregate, weights, colours, epsilon, deterministic)
    if method not in _METHODS:
        raise ValueError(f"smooth_raster: unknown method {method!r}; choose one of {', '.join(_METHODS)}.")
    if method == "separable" and call.settings.logs:
        raise ValueError('smooth_raster: method="separable" sums shares: use aggregate=Poisson(), or method="windows".')
    if method == "separable" or (method == "auto" and backend == "auto" and _separable_is_cheaper(call, sigma)):
        shape = call.settings.height, call.settings.width
        sums = reference.splat_separable(*call.tensors, shape)
    else:
        sums = backends.dispatch("smooth_raster", backend, call)
    total = sums[..., 0, :, :]
    if colours is None:
        return -torch.expm1(-total).to(dtype)
    return (_coverage_per_sum(total)[..., None, :, :] * sums[..., 1:, :, :]).to(dtype)


def chaos_game(
    ifs: IFS | Tensor,
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
    parameters = _parameters_of("chaos_game", ifs)
    dimension = 2 if parameters.shape[-1] == 6 else 3
    choices = _check_choices(choices, parameters)
    chains, steps = choices.shape[-2:]
    if isinstance(burn_in, bool) or not isinstance(burn_in, int) or not 0 <= burn_in <= steps:
        raise ValueError(f"chaos_game: `burn_in` must be an integer from 0 to the {steps} steps, got {burn_in!r}.")
    if horizon is not None and (isinstance(horizon, bool) or not isinstance(horizon, int) or horizon < 1):
        raise ValueError(f"chaos_game: `horizon` must be None or an integer from 1 on, got {horizon!r}.")
    dtype = parameters.dtype
    wide = reference_dtype(parameters)
    begin: Any = wide.new_zeros(chains, dimension) if start is None else start
    if begin.ndim < 2 or tuple(begin.shape[-2:]) != (chains, dimension):
        raise ValueError(
            f"chaos_game: `start` must be ({chains} chains, {dimension} coordinates), got {tuple(begin.shape)}."
        )
    batch = torch.broadcast_shapes(wide.shape[:-2], choices.shape[:-2], begin.shape[:-2])
    call = ChaosCall(
        wide.expand(*batch, *wide.shape[-2:]),
        choices.expand(*batch, chains, steps),
        begin.to(wide.dtype).expand(*batch, chains, dimension),
        ChaosSettings(burn_in, horizon or 0),
    )
    return backends.dispatch("chaos_game", backend, call).flatten(-3, -2).to(dtype)


def contraction(parameters: Tensor, bound: float = 0.97) -> Tensor:
    """The same maps with their linear parts scaled so that each shrinks distances: spectral norm below `bound`.

    A norm s becomes s / (1 + (s / bound)^32)^(1/32): smooth, below `bound` whatever s is, and s itself to within 1 %
    up to 0.9 bound. In 3-D a smooth upper bound of the norm takes its place. Parameters (..., n, 6) or (..., n, 12) in the
    residual form; offsets stay. Infinitely often differentiable.

    >>> contraction(torch.tensor([[0.0, 9.0, 0.0, 0.0, 0.0, -0.5]]), bound=0.9)
    tensor([[ 0.0000, -0.1000,  0.0000,  0.0000,  0.0000, -0.9550]])
    """
    parameters = _parameters_of("contraction", parameters)
    if isinstance(bound, bool) or not isinstance(bound, (int, float)) or not 0 < bound <= 1:
        raise ValueError(f"contraction: `bound` must lie in (0, 1], got {bound!r}.")
    return capped(parameters, torch.full((), float(bound), dtype=parameters.dtype, device=parameters.device))


def capped(parameters: Tensor, bound: Tensor) -> Tensor:
    """`contraction` with one bound per map: `bound` broadcasts to (..., n)."""
    offset, linear = reference.split_parameters(parameters, 2 if parameters.shape[-1] == 6 else 3)
    norm = map_norms(parameters)
    # the 32nd power of the smaller of s/bound and its inverse cannot overflow
    large = norm > bound
    ratio = torch.where(large, bound / torch.where(large, norm, 1.0), torch.where(large, 0.0, norm / bound))
    root = torch.exp(torch.log1p(ratio**32) / -32)
    return reference.join_parameters(offset, linear * (root * torch.where(large, ratio, 1.0))[..., None, None])


def map_norms(parameters: Tensor) -> Tensor:
    """Spectral norm of each map's linear part, (..., n); smooth, and in 3-D an upper bound within 2 %."""
    if parameters.shape[-1] == 6:
        _, linear = reference.split_parameters(parameters, 2)
        a, b, c, d = linear[..., 0, 0], linear[..., 0, 1], linear[..., 1, 0], linear[..., 1, 1]
        # a 2x2 matrix is a rotation times a scale plus a reflection times a scale: the norm is the sum of both scales
        turn = ((a + d) ** 2 + (c - b) ** 2) / 4
        flip = ((a - d) ** 2 + (c + b) ** 2) / 4
        return torch.sqrt(turn + 1e-12) + torch.sqrt(flip + 1e-12)
    _, linear = reference.split_parameters(parameters, 3)
    scale = linear.abs().amax((-2, -1), keepdim=True).clamp_min(1e-6).detach()
    gram = (linear / scale).mT @ (linear / scale)
    # trace(G^32)^(1/64), with the trace taken out at each squaring so that nothing overflows
    log_norm = torch.zeros_like(scale[..., 0, 0])
    for power in range(5):
        trace = gram.diagonal(dim1=-2, dim2=-1).sum(-1).clamp_min(1e-12)
        log_norm = log_norm + trace.log() / 2 ** (power + 1)
        gram = gram / trace[..., None, None]
        gram = gram @ gram
    trace = gram.diagonal(dim1=-2, dim2=-1).sum(-1).clamp_min(1e-12)
    return torch.exp(log_norm + trace.log() / 64) * scale[..., 0, 0]


def area_weights(parameters: Tensor, floor: float = 0.01) -> Tensor:
    """Selection weights (..., n) in proportion to what each map does to areas, |det|, each at least `floor` of all.

    Points then lie about evenly over a fractal whose parts do not overlap. Sums to 1; differentiable.
    """
    _, linear = reference.split_parameters(parameters, 2 if parameters.shape[-1] == 6 else 3)
    area = torch.linalg.det(linear)
    area = torch.sqrt(area**2 + 1e-12)
    share = area / area.sum(-1, keepdim=True)
    return (share + floor) / (1 + floor * share.shape[-1])


def draw_choices(weights: Tensor, chains: int, steps: int, generator: torch.Generator | None = None) -> Tensor:
    """Choices (*batch, chains, steps) of functions with probabilities in proportion to `weights` (*batch, n).

    Stratified: at each step the chains share out the functions as evenly as the weights allow, in random order; the
    picture is less noisy than with independent choices, and each chain by itself is an ordinary one.

    >>> draw_choices(torch.tensor([0.5, 0.25, 0.25]), 4, 2).sort(0).values[:, 0]
    tensor([0, 0, 1, 2])
    """
    where = "draw_choices"
    if chains < 1 or steps < 1:
        raise ValueError(f"{where}: `chains` and `steps` must be at least 1, got {chains} and {steps}.")
    device = generator.device if generator is not None else torch.device("cpu")
    weights = weights.detach().to(device, torch.float64)
    batch = weights.shape[:-1]
    order = torch.rand(*batch, steps, chains, generator=generator, device=device).argsort(-1)
    shift = torch.rand(*batch, steps, 1, generator=generator, dtype=torch.float64, device=device)
    ladder = (order + shift) / chains
    bounds = (weights.cumsum(-1) / weights.sum(-1, keepdim=True))[..., :-1].contiguous()
    if batch:
        chosen = torch.searchsorted(bounds, ladder.flatten(-2), right=True).reshape(ladder.shape)
    else:
        chosen = torch.searchsorted(bounds, ladder.contiguous(), right=True)
    return chosen.mT.contiguous()


def draw_addresses(weights: Tensor, points: int, steps: int, generator: torch.Generator | None = None) -> Tensor:
    """Choices (*batch, points, steps) whose last points fill the attractor evenly: one chain per point.

    Chain k decodes a number u_k, one from each of `points` equal intervals of [0, 1), into choices, the last step
    first. So every part of the fractal that is reached by some sequence of maps gets its share of the points to within
    one: the picture has a fraction of the noise of independent choices. Use it with `burn_in=steps - 1`.

    >>> draw_addresses(torch.tensor([0.5, 0.25, 0.25]), 4, 3)[:, -1]
    tensor([0, 0, 1, 2])
    """
    if points < 1 or steps < 1:
        raise ValueError(f"draw_addresses: `points` and `steps` must be at least 1, got {points} and {steps}.")
    shares = weights.detach().double()
    batch, shares = shares.shape[:-1], shares.reshape(-1, shares.shape[-1])
    bounds = (shares / shares.sum(-1, keepdim=True)).cumsum(-1)
    bounds = torch.cat([torch.zeros_like(bounds[:, :1]), bounds[:, :-1], torch.ones_like(bounds[:, :1])], dim=-1)
    device = generator.device if generator is not None else torch.device("cpu")
    jitter = torch.rand(len(shares), points, generator=generator, dtype=torch.float64, device=device).to(shares.device)
    u = (torch.arange(points, device=shares.device) + jitter) / points
    if backends.why_not_numba(shares) is None:
        from .kernels.numba_chaos import decode_addresses

        found = torch.empty(len(shares), points, steps, dtype=torch.int64)
        for i in range(len(shares)):
            decode_addresses(u[i].numpy(), bounds[i].numpy(), found[i].numpy())
        return found.reshape(*batch, points, steps)
    digits = []
    for _ in range(steps):
        digit = torch.searchsorted(bounds[:, 1:-1].contiguous(), u, right=True)
        low = bounds.gather(1, digit)
        u = ((u - low) / (bounds.gather(1, digit + 1) - low)).clamp(0, 1 - 1e-12)
        digits.append(digit)
    return torch.stack(digits[::-1], dim=-1).reshape(*batch, points, steps)


def reference_dtype(x: Tensor) -> Tensor:
    """x in at least float32: what half precisions are computed in."""
    return x.float() if x.dtype in (torch.float16, torch.bfloat16) else x


def _splat_call(
    points: Tensor,
    size: tuple[int, int],
    sigma: float | Tensor,
    extent: Extent,
    aggregate: Aggregate,
    weights: Tensor | None,
    colours: Tensor | None,
    epsilon: float,
    deterministic: bool | None,
) -> tuple[SplatCall, torch.dtype]:
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
    wide = reference_dtype(points)
    count = points.shape[-2]
    spread = check_sigma(where, sigma, wide)
    # kept as tensor arithmetic on each axis: an extent of 1e-30 must not overflow the quotient
    across = (wide[..., 0] - x0) / (x1 - x0) * width
    down = (y1 - wide[..., 1]) / (y1 - y0) * height
    shapes = [points.shape[:-2], spread.shape]
    if weights is not None:
        _check_trailing(where, "weights", weights, (count,))
        shapes.append(weights.shape[:-1])
    if colours is not None:
        _check_trailing(where, "colours", colours, (count, -1))
        shapes.append(colours.shape[:-2])
    batch = torch.broadcast_shapes(*shapes)
    if deterministic is None:
        deterministic = torch.are_deterministic_algorithms_enabled()
    none = wide.new_empty(*batch, 0)
    call = SplatCall(
        torch.stack([across, down], dim=-1).expand(*batch, count, 2),
        spread.expand(batch),
        none if weights is None else weights.to(wide).expand(*batch, count),
        wide.new_empty(*batch, count, 0) if colours is None else colours.to(wide).expand(*batch, *colours.shape[-2:]),
        SplatSettings(height, width, logs, float(epsilon), bool(deterministic)),
    )
    return call, points.dtype


def check_size(where: str, size: Any) -> tuple[int, int]:
    sides: Any = (size, size) if isinstance(size, int) and not isinstance(size, bool) else size
    fine = isinstance(sides, (tuple, list, torch.Size)) and len(sides) == 2
    if not fine or any(isinstance(n, bool) or not isinstance(n, int) or n < 1 for n in sides):
        raise ValueError(f"{where}: `size` must be (height, width), both integers from 1 on, got {size!r}.")
    return int(sides[0]), int(sides[1])


def check_extent(where: str, extent: Any) -> Extent:
    fine = isinstance(extent, (tuple, list)) and len(extent) == 4
    if not fine or not all(isinstance(v, (int, float)) and math.isfinite(v) for v in extent):
        raise ValueError(f"{where}: `extent` must be four finite numbers (x0, x1, y0, y1), got {extent!r}.")
    x0, x1, y0, y1 = (float(v) for v in extent)
    if not (x0 < x1 and y0 < y1):
        raise ValueError(f"{where}: `extent` must have x0 < x1 and y0 < y1 (y points up), got {extent!r}.")
    return x0, x1, y0, y1


def check_sigma(where: str, sigma: Any, like: Tensor) -> Tensor:
    """`sigma` as a tensor like `like`. The values of a tensor are not read (no synchronisation): below 1e-6 counts as 1e-6."""
    if isinstance(sigma, Tensor):
        if not sigma.is_floating_point():
            raise TypeError(f"{where}: `sigma` must be a number or a floating tensor, got a tensor of {sigma.dtype}.")
        return sigma.to(like)
    if isinstance(sigma, bool) or not isinstance(sigma, (int, float)):
        raise TypeError(f"{where}: `sigma` must be a positive number of pixels or a floating tensor, got {sigma!r}.")
    if not 0 < sigma < math.inf:
        raise ValueError(
            f"{where}: `sigma` must be positive and finite (pixels), got {sigma!r}; for crisp pictures use IFS.crisp()."
        )
    return torch.full((), min(float(sigma), 1e30), dtype=like.dtype, device=like.device)


def _check_trailing(where: str, name: str, tensor: Any, shape: tuple[int, ...]) -> None:
    names = f"(*batch, {', '.join('C' if n < 0 else str(n) for n in shape)})"
    if not isinstance(tensor, Tensor):
        raise TypeError(f"{where}: `{name}` must be a tensor {names}, got {type(tensor).__name__}.")
    fine = tensor.ndim >= len(shape) and all(
        n < 0 or n == m for n, m in zip(shape, tensor.shape[tensor.ndim - len(shape) :], strict=True)
    )
    if not fine:
        raise ValueError(f"{where}: `{name}` must be {names}, one per point, got {tuple(tensor.shape)}.")


def _check_choices(choices: Any, parameters: Tensor) -> Tensor:
    functions = parameters.shape[-2]
    if not isinstance(choices, Tensor) or choices.is_floating_point() or choices.dtype == torch.bool:
        kind = choices.dtype if isinstance(choices, Tensor) else type(choices).__name__
        raise TypeError(f"chaos_game: `choices` must be an integer tensor (chains, steps), got {kind}.")
    if choices.ndim < 2:
        raise ValueError(f"chaos_game: `choices` must be (*batch, chains, steps), got {tuple(choices.shape)}.")
    # On a GPU, and under tracing, reading values would synchronise: the kernels clamp them into range instead
    readable = choices.device.type == "cpu" and not torch.compiler.is_compiling() and choices.numel()
    if readable and not torch._C._functorch.is_functorch_wrapped_tensor(choices):
        low, high = (int(v) for v in torch.aminmax(choices))
        if low < 0 or high >= functions:
            raise ValueError(
                f"chaos_game: `choices` must lie in 0 .. {functions - 1}, got values from {low} to {high}."
            )
    return choices


def _parameters_of(where: str, ifs: Any) -> Tensor:
    parameters: Any = ifs if isinstance(ifs, Tensor) else getattr(ifs, "maps", None)
    if not isinstance(parameters, Tensor) or not parameters.is_floating_point():
        kind = parameters.dtype if isinstance(parameters, Tensor) else type(ifs).__name__
        raise TypeError(f"{where}: expected an IFS or a floating tensor of parameters, got {kind}.")
    if parameters.ndim < 2 or parameters.shape[-1] not in (6, 12) or parameters.shape[-2] < 1:
        raise ValueError(
            f"{where}: parameters must be (*batch, n, 6) in 2-D or (*batch, n, 12) in 3-D with n from 1 on, "
            f"got {tuple(parameters.shape)}."
        )
    return parameters


def _coverage_per_sum(total: Tensor) -> Tensor:
    """(1 - exp(-t)) / t, which is 1 at 0: smooth there, so no pixel divides by an empty sum."""
    small = total.abs() < 1e-2
    safe = torch.where(small, 1.0, total)
    t = torch.where(small, total, 0.0)
    series = 1 - t / 2 * (1 - t / 3 * (1 - t / 4 * (1 - t / 5 * (1 - t / 6))))
    return torch.where(small, series, -torch.expm1(-safe) / safe)


def _separable_is_cheaper(call: SplatCall, sigma: float | Tensor) -> bool:
    """Whether one matrix product over all pixels beats the windows; only where sigma is known without a look at a GPU."""
    chosen = call.settings
    if chosen.logs or isinstance(sigma, Tensor) or call.points.numel() == 0:
        return False
    side = 2 * math.sqrt(-2 * math.log(chosen.epsilon)) * float(sigma) + 1
    window = min(side, chosen.height) * min(side, chosen.width)
    pixels, edges = chosen.height * chosen.width, chosen.height + chosen.width
    if call.points.numel() // 2 * edges * call.points.element_size() > 2**28:
        return False
    # nanoseconds per point, fitted to timings: a pixel of a window, of a product, and an entry of the two factors
    pixel, product, entry = (0.15, 0.04, 10.0) if call.points.device.type == "cpu" else (0.003, 1e-5, 0.05)
    return pixel * window > product * pixels + entry * edges
