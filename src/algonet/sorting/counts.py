"""Smooth counts and their inverse, in plain torch: the truth that the kernels mirror.

    S(y) = sum_j w_j r(y - x_j)            how much lies below y, every item a soft step (the smoothed distribution function)
    y(k) with S(y) = k                     its inverse (the smoothed quantiles)

Arguments are in units of the sigmoid (steepness 1) and in float64. Few pairs are added up one by one. Many are not needed: S
varies on the scale of r, so the items are put on a grid by quintic B-splines, the grid is convolved with r, and a quintic
B-spline through the result is read at y. See README.md.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from algonet.core.cache import TENSORS, cached
from algonet.relax import Sigmoid


@dataclass(frozen=True)
class CountSettings:
    """The sigmoid (interned), and whether results are wanted to 1e-11 instead of 1e-7."""

    sigmoid: Sigmoid
    precise: bool


@dataclass(frozen=True)
class LaplaceSettings:
    """There is nothing to choose."""


#: Row q: the weight of node i - 2 + q for a number at i + t, as a polynomial in t (the quintic B-spline).
BASIS = tuple(
    tuple(c / 120 for c in row)
    for row in (
        (1, -5, 10, -10, 5, -1),
        (26, -50, 20, 20, -20, 5),
        (66, 0, -60, 0, 30, -10),
        (26, 50, 20, -20, -20, 10),
        (1, 5, 10, 10, 5, -5),
        (0, 0, 0, 0, 0, 1),
    )
)
#: Nodes for each unit of the sigmoid: the first that is as exact as the precision asks for is taken.
NODES_PER_UNIT = (2, 3, 4, 6, 8, 12, 16, 24, 32)
#: Up to so many pairs are added up one by one in the reference.
PAIRS = 2**20
#: Rounds of bisection, and chord steps from the root: each makes one more derivative exact.
ROUNDS, CHORDS = 100, 3


@cached
def nodes_per_unit(sigmoid: Sigmoid, precise: bool) -> int:
    """How fine the grid must be for this sigmoid; 0 where none of `NODES_PER_UNIT` does, as with kinks."""
    for per in NODES_PER_UNIT:
        d = torch.arange(-24 * per, 24 * per + 1, dtype=torch.float64)
        table = node_table(sigmoid, per, 30 * per)
        error = 0.0
        for a, b in ((0.37, 0.81), (0.5, 0.0), (0.23, 0.31)):
            first, second = (torch.tensor(BASIS, dtype=torch.float64) @ t ** torch.arange(6.0).double() for t in (a, b))
            found = sum(first[p] * second[q] * table[(d + 30 * per + p - q).long()] for p in range(6) for q in range(6))
            error = max(error, float((found - sigmoid((d + a - b) / per)).abs().max()))  # pyright: ignore
        if error <= (1e-11 if precise else 1e-7):
            return per
    return 0


def node_table(sigmoid: Sigmoid, per: int, most: int) -> Tensor:
    """K[-most ... most] on the CPU: K between nodes, read by two splines, is r between the numbers they stand for.

    The splines blur a grid by b = (1, 26, 66, 26, 1) / 120 each; K is r(. / per), sharpened by the inverse of b * b.
    """
    size = 1 << (max(most, 64) - 1).bit_length()

    def make() -> Tensor:
        d = torch.arange(-size - 64, size + 65, dtype=torch.float64)
        ring = torch.zeros(256, dtype=torch.float64)
        ring[torch.arange(-2, 3)] = torch.tensor([1.0, 26.0, 66.0, 26.0, 1.0], dtype=torch.float64) / 120
        sharpen = torch.fft.irfft(1 / torch.fft.rfft(ring).abs() ** 2, 256).roll(64)[:129]
        return torch.conv1d(sigmoid(d / per)[None, None], sharpen[None, None])[0, 0]

    return TENSORS.get(("node table", sigmoid, per, size), make)[size - most : size + most + 1]


def counts_reference(tensors: Sequence[Tensor], settings: CountSettings) -> tuple[Tensor]:
    """(S,) (*batch, m, c) of [y (*batch, m), x (*batch, n), w (*batch, n, c)]; see `operation.COUNTS`."""
    y, x, w = tensors
    total = w.sum(-2, keepdim=True)
    if not y.numel() or not w.numel() or y.is_meta:
        return (y.unsqueeze(-1) * total,)
    far = y.isinf()
    near = torch.where(far, 0.0, y)
    found = _counter(x, w, settings, near, y.shape[-1])(near)
    return (torch.where(far.unsqueeze(-1), (y > 0).to(y.dtype).unsqueeze(-1) * total, found),)


def _few(x: Tensor, m: int, settings: CountSettings) -> bool:
    """Whether all pairs are added up."""
    return x.numel() * m <= PAIRS or not nodes_per_unit(settings.sigmoid, settings.precise)


def _counter(x: Tensor, w: Tensor, settings: CountSettings, ends: Tensor, m: int) -> Callable[[Tensor], Tensor]:
    """S of m points that lie between the ends of a row."""
    if _few(x, m, settings):
        return lambda y: settings.sigmoid(y.unsqueeze(-1) - x.unsqueeze(-2)) @ w
    per, both = nodes_per_unit(settings.sigmoid, settings.precise), torch.cat([x, ends], -1).detach()
    least = both.amin(-1, keepdim=True)
    size = int(((both.amax(-1, keepdim=True) - least).amax() * per).floor()) + 6
    at, given = _spline((x - least) * per)
    masses = (w.unsqueeze(-1) * given.unsqueeze(-2)).movedim(-2, -3).flatten(-2)  # (*batch, c, n * 6)
    at = at.flatten(-2).unsqueeze(-2).expand(masses.shape)
    grid = torch.zeros(*masses.shape[:-1], size, dtype=w.dtype, device=w.device).scatter_add(-1, at, masses)
    table = node_table(settings.sigmoid, per, size).to(w.device)
    length = 3 * size
    field = torch.fft.irfft(torch.fft.rfft(grid, length) * torch.fft.rfft(table, length), length)[..., size : 2 * size]

    def count(y: Tensor) -> Tensor:
        at, taken = _spline((y - least) * per)
        read = field.gather(-1, at.flatten(-2).unsqueeze(-2).expand(*field.shape[:-1], -1)).unflatten(-1, at.shape[-2:])
        return (read * taken.unsqueeze(-3)).sum(-1).movedim(-1, -2)

    return count


def _spline(u: Tensor) -> tuple[Tensor, Tensor]:
    """(nodes, weights) (*, 6) of numbers u on a grid whose first two nodes lie before 0."""
    i = u.detach().floor()
    powers = (u - i).unsqueeze(-1) ** torch.arange(6, dtype=u.dtype, device=u.device)
    basis = torch.tensor(BASIS, dtype=u.dtype, device=u.device)
    return i.long().unsqueeze(-1) + torch.arange(6, device=u.device), powers @ basis.T


def inverse_reference(tensors: Sequence[Tensor], settings: CountSettings) -> tuple[Tensor]:
    """(y,) (*batch, m) of [x (*batch, n), w (*batch, n), k (*batch, m)]; see `operation.INVERSE`.

    The root is found by bisection without derivatives; a few chord steps carry them: each step of y <- y - (S(y) - k) / S'
    with the slope held fixed makes one more derivative exact.
    """
    x, w, k = tensors
    if not k.numel() or k.is_meta:
        return (k.clone(),)
    total = w.sum(-1, keepdim=True)
    inside = (k > 0) & (k < total)
    # Items that do not count stand where others do
    present = w != 0
    first = torch.where(present, x.detach(), torch.inf).amin(-1, keepdim=True)
    x = torch.where(present, x, torch.where(present.any(-1, keepdim=True), first, 0.0))
    wanted, fixed, m = torch.where(inside, k, total / 2), x.detach(), k.shape[-1]
    # Between few items a bracket that no number decides, as `vmap` wants it
    margin = reach(settings.sigmoid, 1e-14) if _few(x, m, settings) else margin_of(settings.sigmoid, w, k)
    low, high = fixed.amin(-1, keepdim=True) - margin, fixed.amax(-1, keepdim=True) + margin
    ends = torch.cat([low, high], -1)
    still = _counter(fixed, w.unsqueeze(-1), settings, ends, m)
    low, high = low.expand(k.shape), high.expand(k.shape)
    for _ in range(ROUNDS):
        middle = (low + high) / 2
        less = still(middle).squeeze(-1) < wanted.detach()
        low, high = torch.where(less, middle, low), torch.where(less, high, middle)
    y = ((low + high) / 2).detach()
    pull = torch.func.vjp(still, y)[1]
    slope = pull(torch.ones_like(y).unsqueeze(-1))[0].detach()
    steep, moving = inside & (slope > 1e-290), _counter(x, w.unsqueeze(-1), settings, ends, m)
    for _ in range(CHORDS):
        y = y - torch.where(steep, (moving(y).squeeze(-1) - wanted) / torch.where(steep, slope, 1.0), 0.0)
    beyond = torch.where(k.detach() > 0, torch.inf, -torch.inf).to(y.dtype)
    return (torch.where(inside, y, torch.where((total * k).isnan(), torch.nan, beyond)),)


def margin_of(sigmoid: Sigmoid, w: Tensor, k: Tensor) -> float:
    """How far beyond the items a count of k, or of all but k, can lie."""
    total = w.sum(-1, keepdim=True)
    share = torch.where((k > 0) & (k < total), torch.minimum(k, total - k) / total.clamp_min(1e-300), 0.49).amin()
    return 1.0 + reach(sigmoid, min(max(float(share), 1e-15), 0.49))


@cached
def reach(sigmoid: Sigmoid, epsilon: float) -> float:
    """`Sigmoid.reach`, looked up: that of people's own sigmoids is measured."""
    return float(sigmoid.reach(epsilon))


def laplace_reference(tensors: Sequence[Tensor], settings: LaplaceSettings) -> tuple[Tensor]:
    """(counts,) of [x, weights, steepness], see `operation.LAPLACE`; by sorting, O(n log n), float64 inside.

    With the items sorted, A_i = sum_{j < i} w_j exp(-steepness (x_i - x_j)) obeys A_{i+1} = (A_i + w_i) exp(-steepness
    (x_{i+1} - x_i)), and B_i, the sum over those behind, the same from the other end; the count is sum_{j < i} w_j - A_i / 2
    + B_i / 2. Equal infinities tie, and a NaN spoils its row.
    """
    x, weights, steepness = tensors
    wide = x.double()
    ordered, order = wide.detach().sort(dim=-1, stable=True)
    w = torch.gather(weights.detach().double(), -1, order)
    infinite = ordered.isinf()
    # Infinite items are crisp: they have no share in an exponential, and equal ones have half of each other
    scaled = steepness.double() * torch.where(infinite, 0.0, torch.gather(wide, -1, order))
    lower, upper = _sums_by_doubling(scaled, torch.where(infinite, 0.0, w), infinite)
    low, high = (torch.where(ordered == end, w, 0.0).sum(-1, keepdim=True) for end in (-torch.inf, torch.inf))
    tied = torch.where(ordered < 0, (low - w) / 2, w.sum(-1, keepdim=True) - (high + w) / 2)
    count = torch.where(infinite, tied, w.cumsum(-1) - w + (upper - lower) / 2)
    count = torch.where(ordered.isnan().any(-1, keepdim=True), torch.nan, count)
    return (torch.zeros_like(count).scatter(-1, order, count).to(x.dtype),)


def _sums_by_doubling(scaled: Tensor, w: Tensor, infinite: Tensor) -> tuple[Tensor, Tensor]:
    """A and B by a scan in log2 n steps: each item adds what it knows of those a power of two away. Any derivative."""
    apart = infinite[..., 1:] | infinite[..., :-1]
    falls = torch.where(apart, 0.0, torch.exp(-torch.where(apart, 0.0, scaled.diff(dim=-1))))
    # Both directions in one scan: from the first item on, and from the last one on
    falls = torch.nn.functional.pad(torch.stack([falls, falls.flip(-1)]), (1, 0))[..., : w.shape[-1]]
    sums = falls * torch.nn.functional.pad(torch.stack([w, w.flip(-1)]), (1, 0))[..., :-1]
    step = 1
    while step < w.shape[-1]:
        near = torch.nn.functional.pad(torch.stack([sums, falls]), (step, 0))[..., :-step]
        sums, falls, step = sums + falls * near[0], falls * near[1], 2 * step
    return sums[0], sums[1].flip(-1)
