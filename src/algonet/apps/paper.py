"""`algonet paper`: every equation of the paper against a plain reading of it, and its figures."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from algonet.ifs import chaos_game, smooth_raster
from algonet.nn import FiniteDifferences, Insert, Residual, Shortcut
from algonet.relax import (
    GaussianNoise,
    Heaviside,
    Logistic,
    Probabilistic,
    Sech,
    SmoothStep,
    Tent,
    weighted_softmax,
    weighted_softmin,
)  # fmt: skip
from algonet.render import Camera, FilteredCoverage, Mesh, SmoothRenderer
from algonet.sorting import OddEven, soft_median, soft_sort
from algonet.while_lang import WhileProgram

#: Deviations up to this, relative to the largest number, are rounding.
ROUNDING = 1e-6
#: Figures of the paper: its number and name, and the gallery's section and figure that draw it.
FIGURES = {
    "1 exits": ("relax", "exits"),
    "2 multiplication": ("while_lang", "surfaces"),
    "3 forward styles": ("nn", "styles"),
    "4 RAN": ("ran", "data paths"),
    "5 SoftSort": ("sorting", "network"),
}


@dataclass(frozen=True)
class Check:
    """An equation, where it stands, and how far the library is from a plain reading; `note` says what must differ."""

    section: str
    equation: str
    deviation: float
    note: str = ""

    @property
    def verdict(self) -> str:
        return "equal" if self.deviation <= ROUNDING else f"deviates by {self.deviation:.2g}"


def checks() -> Iterator[Check]:
    """All of them, in the paper's order."""
    for section, equation, pair, note in EQUATIONS:
        ours, plain = pair()
        ours, plain = (torch.as_tensor(side, dtype=torch.float64) for side in (ours, plain))
        yield Check(section, equation, float((ours - plain).abs().max() / plain.abs().max().clamp_min(1.0)), note)


def table() -> str:
    """The equations in Markdown, as the documentation shows them."""
    rows = [f"| {c.section} | {c.equation} | {c.verdict} | {c.note} |" for c in checks()]
    return "\n".join(["| section | in the paper | here | what differs from the print |", "|---|---|---|---|", *rows])


def figures() -> Iterator[tuple[str, bytes]]:
    """Names and PNGs of the paper's figures."""
    from algonet.apps import gallery

    for name, (section, figure) in FIGURES.items():
        yield name, gallery.draw(section, figure, quick=True).image


def _items(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def _each(function: Callable[[float], float], x: Tensor) -> Tensor:
    return torch.tensor([function(v) for v in x.tolist()], dtype=torch.float64)


def _relaxation(ours: Callable[[Tensor], Tensor], plain: Callable[[float], float]) -> Callable[[], Any]:
    x = torch.linspace(-3, 3, 61, dtype=torch.float64) + 0.01
    return lambda: (ours(x), _each(plain, x))


def _multiplication(exit: Any, phi: Callable[[float], float]) -> Callable[[], Any]:
    """The left listing with equations 3 to 5: each statement to the extent of p, which is tested where the loop is."""

    def plain(x1: float, x2: float, epsilon: float = 1e-6) -> float:
        x0 = x3 = 0.0
        p1 = phi(x2)
        while p1 > epsilon:
            x3 = p1 * x1 + (1 - p1) * x3
            p2 = p1 * phi(x3)
            while p2 > epsilon:
                x0, x3 = x0 + p2, x3 - p2
                p2 *= phi(x3)
            x2 -= p1
            p1 *= phi(x2)
        return x0

    def both() -> tuple[Tensor, Tensor]:
        x1, x2 = (torch.tensor(v, dtype=torch.float64) for v in ((1.0, 2.0, 2.5, 3.3), (3.0, 1.0, 1.5, 2.2)))
        program = WhileProgram.library("multiply", exit=exit, epsilon=1e-6)
        read = [plain(a, b) for a, b in zip(x1.tolist(), x2.tolist(), strict=True)]
        return program(x1=x1, x2=x2), torch.tensor(read, dtype=torch.float64)

    return both


def _do_while() -> tuple[list[bool], list[bool]]:
    """The right listing as it stands, do body while p >= epsilon: whether the inner loop ends at x3 = 3, 2 and 1/2."""

    def ends(x3: float) -> bool:
        p = 1.0
        for _ in range(1000):
            x3, p = x3 - p, p * min(1.0, abs(x3 - p))
            if p < 1e-6:
                return True
        return False

    return [ends(x3) for x3 in (3.0, 2.0, 0.5)], [True, True, False]


def _network(a: list[float], steepness: float) -> list[list[float]]:
    """SoftSort's matrix for a row of items, layer by layer, in ascending order and n layers."""
    n = len(a)
    whole = [[float(i == j) for j in range(n)] for i in range(n)]
    for layer in range(n):
        for i in range(layer % 2, n - 1, 2):
            e = 1 / (1 + math.exp(-(a[i + 1] - a[i]) * steepness))
            a[i], a[i + 1] = e * a[i] + (1 - e) * a[i + 1], e * a[i + 1] + (1 - e) * a[i]
            for row in whole:
                row[i], row[i + 1] = e * row[i] + (1 - e) * row[i + 1], e * row[i + 1] + (1 - e) * row[i]
    return whole


def _softsort() -> tuple[Tensor, Tensor]:
    a = _items(7)
    matrix = torch.tensor(_network(a.tolist(), 10.0), dtype=torch.float64)
    return soft_sort(a, method=OddEven(), relax=Logistic(10.0)).values, a @ matrix


def _payload() -> tuple[Tensor, Tensor]:
    a, t = _items(6), _items(6, seed=1)
    matrix = torch.tensor(_network(a.tolist(), 10.0), dtype=torch.float64)
    return soft_sort(a, payload=t, method=OddEven(), relax=Logistic(10.0)).payload, t @ matrix


def _mean() -> tuple[Tensor, Tensor]:
    a = _items(5)
    return soft_sort(a, method=OddEven(), relax=Logistic(0.1), steps=500).values, a.mean().expand(5)


def _median() -> tuple[Tensor, Tensor]:
    a = _items(7)
    whole = a @ torch.tensor(_network(a.tolist(), 10.0), dtype=torch.float64)
    return soft_median(a, method=OddEven(), relax=Logistic(10.0)), whole[3]


def _softmax() -> tuple[Tensor, Tensor]:
    x, w = _items(6), _items(6, seed=1).sigmoid()
    e = [math.exp(v) * u for v, u in zip(x.tolist(), w.tolist(), strict=True)]
    return weighted_softmax(x, w), torch.tensor([v / sum(e) for v in e], dtype=torch.float64)


def _softmin() -> tuple[Tensor, Tensor]:
    x, w = _items(6), _items(6, seed=1).sigmoid()
    return weighted_softmin(x, w), weighted_softmax(-x, w)


def _differences() -> tuple[Tensor, Tensor]:
    x = _items(3, 9)
    return FiniteDifferences(-1)(x), x[:, 1:] - x[:, :-1]


def _styles() -> tuple[Tensor, Tensor]:
    x = _items(2, 8)
    body, left, right = torch.nn.Softplus(), x[:, :4], x[:, 4:]
    ours = [Insert(torch.sin)(x), Shortcut(torch.sin)(x), Residual(torch.sin, body)(x)]
    plain = [x.sin(), torch.cat([left, right.sin()], -1), torch.cat([(1 + left.exp()).log(), right.sin()], -1)]
    return torch.stack(ours), torch.stack(plain)


def _chaos() -> tuple[Tensor, Tensor]:
    maps, choices = _items(3, 6) / 4 - 0.2, [0, 2, 1, 1, 0, 2, 0]
    x = y = 0.0
    points = []
    for choice in choices:
        a1, a2, a3, a4, a5, a6 = maps[choice].tolist()
        x, y = x + a1 + a2 * x + a3 * y, y + a4 + a5 * x + a6 * y
        points.append([x, y])
    return chaos_game(maps, torch.tensor([choices])), torch.tensor(points, dtype=torch.float64)


def _raster() -> tuple[Tensor, Tensor]:
    """One point, three pixels a side: the normal distribution's mass in each pixel."""

    def mass(low: float, middle: float) -> float:
        return (math.erf((low + 1 - middle) / math.sqrt(2)) - math.erf((low - middle) / math.sqrt(2))) / 2

    plain = [[mass(row, 3 - 3 * 0.3) * mass(column, 3 * 0.6) for column in range(3)] for row in range(3)]
    point = torch.tensor([[0.6, 0.3]], dtype=torch.float64)
    return smooth_raster(point, (3, 3), sigma=1.0, epsilon=1e-12), torch.tensor(plain, dtype=torch.float64)


def _silhouette() -> tuple[Tensor, Tensor]:
    """A triangle whose one edge crosses the picture and whose others are far away: the mass of normal noise on its side."""
    corners = torch.tensor([[0.1, -400.0, 0.0], [0.1, 400.0, 0.0], [-400.0, 0.0, 0.0]], dtype=torch.float64)
    camera = Camera.look_at(torch.tensor([0.0, 0.0, 2.0], dtype=torch.float64), fov=2 * math.degrees(math.atan(0.5)))
    renderer = SmoothRenderer(16, coverage=FilteredCoverage(GaussianNoise(1.5)), conorm=Probabilistic())
    seen = renderer(Mesh(corners, torch.tensor([[0, 1, 2]])), camera).silhouette[8]
    edge = (0.1 + 1) * 8 - 0.5  # in pixels: two units are 16 of them
    plain = [(1 + math.erf((edge - x) / 1.5 / math.sqrt(2))) / 2 for x in range(16)]
    return seen, torch.tensor(plain, dtype=torch.float64)


def _losses() -> tuple[Tensor, Tensor]:
    from algonet.ran import Paths, ran_loss

    a, a1, a2, b1, b2 = (_items(2, 1, 3, 3, seed=i) for i in range(5))

    def judge(x: Tensor, y: Tensor) -> Tensor:
        return (x * y).flatten(1).mean(1, keepdim=True)

    def real(x: Tensor, y: Tensor) -> Tensor:
        return torch.log(torch.sigmoid(judge(x, y))).mean()

    def fake(x: Tensor, y: Tensor) -> Tensor:
        return torch.log(1 - torch.sigmoid(judge(x, y))).mean()

    def norm(x: Tensor, y: Tensor) -> Tensor:
        return (x - y).abs().flatten(1).sum(1).mean()

    plain = [
        real(a, b2) + fake(a, b1) + norm(b2, b1),
        real(a, b2) + fake(a2, b2) + norm(a2, a),
        real(a, b1) + fake(a2, b1) + norm(a1, a) + norm(b2, b1),
        real(a, b2) + fake(a1, b2) + norm(a1, a) + norm(b2, b1),
        real(a, b1) + fake(a1, b1) + norm(a1, a),
    ]
    paths = Paths(a=a, a1=a1, a2=a2, b1=b1, b2=b2)
    return torch.stack([ran_loss(i, paths, judge) for i in range(1, 6)]), torch.stack(plain)


#: Section, equation, (the library's numbers, those of a plain reading), and what differs from the print.
EQUATIONS: list[tuple[str, str, Callable[[], Any], str]] = [
    (
        "3.1",
        "eq. 1: s1(x, s) = 1 / (1 + exp(-x s))",
        _relaxation(Logistic(2.0), lambda x: 1 / (1 + math.exp(-2 * x))),
        "",
    ),
    ("3.1", "eq. 2: s2(x) = 0 if x < 0, else 1", _relaxation(Heaviside(), lambda x: float(x >= 0)), ""),
    (
        "3.1",
        "smooth step, 3 x^2 - 2 x^3 on [0, 1]",
        _relaxation(SmoothStep(1), lambda x: (lambda t: t * t * (3 - 2 * t))(min(max((1 + x) / 2, 0.0), 1.0))),
        "printed x^2 - 2 x^3, which does not reach 1; from -1 to 1 here",
    ),
    ("3.1.1", "phi_inf(x) = 1 - sech(s x)", _relaxation(Sech(2.0), lambda x: 1 - 1 / math.cosh(2 * x)), ""),
    ("3.1.1", "phi_0(x) = min(1, abs(x))", _relaxation(Tent(), lambda x: min(1.0, abs(x))), ""),
    (
        "3.1.1",
        "eq. 3-5: the multiplication, phi_inf",
        _multiplication(Sech(2.0), lambda x: 1 - 1 / math.cosh(2 * x)),
        "loops test before their body, as the left listing",
    ),
    ("3.1.1", "eq. 3-5: the multiplication, phi_0", _multiplication(Tent(), lambda x: min(1.0, abs(x))), ""),
    (
        "3.1.1",
        "the right listing, read as do-while",
        _do_while,
        "slip: ends on integers, but not at x3 = 1/2, which its first round makes negative",
    ),
    ("3.2", "figure 3: insert, shortcut, residual", _styles, ""),
    ("3.3", "L1 to L5", _losses, "in float32"),
    (
        "4.1",
        "eq. 6, 7: b = a M",
        _softsort,
        "ascending, where the arrows sort descending; n layers, as n - 1 leave 3, 2, 1, 0 unsorted",
    ),
    ("4.1", "eq. 7: t' = t M", _payload, ""),
    ("4.1", "infinitely many layers give the mean", _mean, ""),
    ("4.2", "finite differences", _differences, ""),
    ("4.3", "eq. 8: wSoftMax", _softmax, ""),
    ("4.3", "wSoftMin(x, w) = wSoftMax(-x, w)", _softmin, ""),
    ("4.4", "SoftMedian: the middle of SoftSort", _median, ""),
    ("4.5", "chaos game of residual maps", _chaos, ""),
    ("4.5", "a pixel's share of a point is a normal mass", _raster, ""),
    ("4.6", "a pixel's probability of lying in a triangle", _silhouette, "on one face, by quadrature"),
]
