"""Random soft sorts: every function, method, sigmoid, backend, layout and precision against the dense formula."""

from __future__ import annotations

import dataclasses
import math
import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from algonet import relax, sorting
from algonet.relax import Heaviside, Logistic, Sigmoid
from algonet.sorting import OddEven, Pairwise, Permutahedron

from . import dense_sorts
from .hunt import differs, gradients, simpler

NAMES = {**{n: getattr(relax, n) for n in relax.__all__}, **{n: getattr(sorting, n) for n in sorting.__all__}}
NAMES.update(torch=torch, inf=math.inf, nan=math.nan)
FUNCTIONS = (
    "soft_sort", "soft_argsort", "soft_rank", "soft_topk", "soft_quantile", "soft_median", "soft_topk_mask"
)  # fmt: skip
METHODS = (
    "OddEven()", "Bitonic()", "Pairwise()", "NeuralSort()", "Unimodal()", "Transport(iterations=7)",
    "Permutahedron(strength=0.7)", "Permutahedron(strength=0.4, entropic=True)", "'fast'", "'paper'",
)  # fmt: skip
SIGMOIDS = (
    "Logistic", "Gaussian", "Cauchy", "Gudermannian", "Bump", "SmoothStep", "Laplace", "Reciprocal", "Optimal",
    "GumbelMax", "GumbelMin", "Heaviside",
)  # fmt: skip
STEEPNESSES = (1.0, 2.0, 0.3, 10.0, 30.0)
#: What the items are like. Sums of rounding errors are relative to the largest item.
VALUES = ("normal", "ties", "equal", "wide", "infinities", "nan")
LAYOUTS = ("contiguous", "transposed", "strided", "expanded")
MASKS = ("", "random", "shared", "none")
DTYPES = ("float64", "float32", "float16", "bfloat16")
#: dtype -> (values, gradients) as shares of the largest, times 1 + steepness * largest item: differences of
#: items are rounded before they are made steeper. The worst seen in 20,000 cases was a tenth of it.
TOLERANCES = {"float64": (1e-11, 1e-9), "float32": (1e-5, 1e-4), "float16": (4e-3, 8e-3), "bfloat16": (3e-2, 6e-2)}
SIMPLEST: dict[str, tuple[Any, ...]] = {
    "rows": ((), (1,), (2,), (3,)), "items": (1, 2, 3), "dim": (-1,), "mask": MASKS, "payload": (None, (), (1,)),
    "values": VALUES, "layout": LAYOUTS, "dtype": DTYPES, "hard": (False,), "steps": (None,), "permutation": (False,),
    "learned": (False,), "descending": (False,), "sigmoid": SIGMOIDS, "steepness": STEEPNESSES, "method": METHODS,
    "backend": ("reference", "numba", "auto"), "wanted": (1, 0.5),
}  # fmt: skip


@dataclass(frozen=True)
class Sort:
    """A call, by what it is made of; its tensors follow from the seed and the shapes."""

    seed: int
    function: str
    method: str
    sigmoid: str
    steepness: float
    learned: bool
    backend: str
    rows: tuple[int, ...]
    items: int
    dim: int
    dtype: str
    values: str
    layout: str
    mask: str
    payload: tuple[int, ...] | None
    descending: bool
    steps: int | None
    hard: bool
    permutation: bool
    #: k or the level of a quantile, as a share of what is possible where it is not an integer.
    wanted: float

    @property
    def shape(self) -> tuple[int, ...]:
        shape = list(self.rows)
        shape.insert(self.dim % (len(self.rows) + 1), self.items)
        return tuple(shape)

    def tensors(self) -> dict[str, Tensor]:
        """x, and those of mask, payload, steepness and k that the call has."""
        generator = torch.Generator().manual_seed(self.seed)
        dtype = getattr(torch, self.dtype)
        x = _items(self.values, (*self.rows, self.items), generator).movedim(-1, self.dim).contiguous().to(dtype)
        found = {"x": _laid_out(x, self.layout)}
        if self.mask:
            after = len(self.rows) - self.dim % len(self.shape)
            shape = self.shape if self.mask != "shared" else (self.items,) + (1,) * after
            share = 2.0 if self.mask == "none" else 0.3
            found["mask"] = torch.rand(shape, generator=generator) > share
        if self.payload is not None:
            payload = torch.randn(*self.shape, *self.payload, generator=generator, dtype=torch.float64)
            found["payload"] = _laid_out(payload.to(dtype), self.layout)
        if self.learned:
            found["steepness"] = torch.tensor(self.steepness, dtype=torch.float32 if "16" in self.dtype else dtype)
        if self.function == "soft_topk_mask" and self.wanted == 0.25:
            found["k"] = torch.rand(self.rows, generator=generator, dtype=torch.float64) * self.items
        return found

    def options(self) -> dict[str, str]:
        """Keyword arguments as text."""
        steepness = "steepness" if self.learned else self.steepness
        # SmoothStep's first field is its degree
        given = {"relax": "Heaviside()" if self.sigmoid == "Heaviside" else f"{self.sigmoid}(steepness={steepness})"}
        given["dim"] = str(self.dim)
        if self.function != "soft_topk_mask":
            given["method"] = self.method
        if self.descending and self.function in ("soft_sort", "soft_argsort", "soft_rank"):
            given["descending"] = "True"
        if not self.descending and self.function in ("soft_topk", "soft_topk_mask"):
            given["largest"] = "False"
        if self.function == "soft_median" and self.method in ("'fast'", "'paper'"):
            given["degree"] = "3"
        if self.steps is not None:
            given["steps"] = str(self.steps)
        if self.hard:
            given["hard"] = "True"
        if self.permutation:
            given["return_permutation"] = "True"
        given["backend"] = repr(self.backend)
        return given

    def positional(self) -> str:
        if self.function == "soft_topk_mask":
            return "x, k" if self.wanted == 0.25 else f"x, {self.count}"
        if self.function == "soft_topk":
            return f"x, {self.count}"
        return f"x, {self.level}" if self.function == "soft_quantile" else "x"

    @property
    def count(self) -> int | float:
        """k, whole for `soft_topk`."""
        k = min(self.wanted, self.items) if self.wanted >= 1 else self.wanted * self.items
        return k if self.function == "soft_topk_mask" and self.wanted < 1 else math.floor(k)

    @property
    def level(self) -> Any:
        return self.wanted if self.wanted < 1 else [0.1, 1.0]


class Sorts:
    """The target. Its one way: values and gradients of a call are those of the formula."""

    name = "sorts"
    ways: tuple[str, ...] = ("as the formula says",)

    def draw(self, seed: int) -> Sort:
        pick = random.Random(seed)
        function = pick.choice(FUNCTIONS)
        method = pick.choice([m for m in METHODS if _answers(function, m)] + ["OddEven()", "Bitonic()"] * 2)
        network, weighing = method in METHODS[:2], method in ("'fast'", "'paper'")
        sigmoid = pick.choice(SIGMOIDS if network or method == "Pairwise()" else ("Logistic",))
        rows = pick.choice(((), (1,), (3,), (2, 3), (5,), (0,), (2, 1, 2)))
        straight = function in ("soft_sort", "soft_argsort", "soft_rank", "soft_topk", "soft_topk_mask")
        values = pick.choice(VALUES if network or function == "soft_topk_mask" else VALUES[:4])
        case = Sort(
            seed=seed,
            function=function,
            method=method,
            sigmoid=sigmoid,
            steepness=pick.choice(STEEPNESSES[:2] if weighing else STEEPNESSES),
            learned=sigmoid != "Heaviside" and pick.random() < 0.3,
            backend=pick.choice(("reference", "numba", "auto")) if network or method == "Pairwise()" else "auto",
            rows=rows,
            items=pick.choice((1, 2, 3, 4, 5, 7, 8, 9, 13, 17, 33)),
            dim=pick.randrange(-len(rows) - 1, len(rows) + 1),
            dtype=pick.choice(DTYPES),
            values=values,
            layout=pick.choice(LAYOUTS),
            mask=pick.choice(MASKS) if not method.startswith("Permutahedron") else "",
            payload=pick.choice((None, (), (1,), (3,), (2, 2))) if function == "soft_sort" else None,
            descending=pick.random() < 0.5,
            steps=pick.randrange(12) if network and function == "soft_sort" and pick.random() < 0.2 else None,
            hard=straight and pick.random() < 0.2,
            permutation=function in ("soft_sort", "soft_topk") and pick.random() < 0.3,
            wanted=pick.choice((1, 2, 3, 6, 40, 0.25, 0.5, 0.99)),
        )
        return _valid(case)

    def compare(self, case: Sort, way: str) -> str | None:
        tensors = {n: t.detach().requires_grad_(t.is_floating_point()) for n, t in case.tensors().items()}
        moving = [n for n, t in tensors.items() if t.requires_grad]
        found = called(case, tensors)
        wide = {n: t.detach().double() if t.is_floating_point() else t for n, t in tensors.items()}
        wide = {n: t.requires_grad_(n in moving) for n, t in wide.items()}
        wanted = dense(case, wide)
        values, slopes = TOLERANCES[case.dtype]
        largest = max([1.0, *(t.detach()[t.isfinite()].abs().max().item() for t in tensors.values() if _some(t))])
        blur = 1.0 if "16" in case.dtype else 1 + case.steepness * largest
        for name, one in found.items():
            # A row with a NaN is spoiled, and nothing is promised of it
            problem = differs(
                name, _sound(case, one, tensors["x"]), _sound(case, wanted[name], wide["x"]), values * blur
            )
            if problem:
                return problem
        kept = [name for name in found if name != "payload" or case.values != "nan"]
        mine = gradients([_sound(case, found[n], tensors["x"]) for n in kept], [tensors[n] for n in moving], case.seed)
        true = gradients([_sound(case, wanted[n], wide["x"]) for n in kept], [wide[n] for n in moving], case.seed)
        for name, one, other in zip(moving, mine, true, strict=True):
            if name in ("x", "payload"):
                one, other = (_sound(case, t, tensors["x"]) for t in (one, other))
            if name == "x":
                # Infinite items take part without a gradient
                other = torch.where(tensors["x"].isinf(), 0.0, other)
            if name == "steepness" and case.values == "nan":
                continue
            problem = differs(f"gradient of {name}", one, other, slopes * blur)
            if problem:
                return problem
        return None

    def smaller(self, case: Sort) -> Iterator[Sort]:
        for candidate in simpler(case, SIMPLEST):
            valid = _valid(candidate)
            if valid != case and _answers(valid.function, valid.method):
                yield valid

    def snippet(self, case: Sort, way: str) -> str:
        lines = [
            "import torch",
            "from math import inf, nan",
            "from algonet.relax import *",
            "from algonet.sorting import *",
            "",
        ]
        for name, t in case.tensors().items():
            moves = ", requires_grad=True" if t.is_floating_point() else ""
            lines.append(f"{name} = torch.tensor({t.tolist()}, dtype={t.dtype}{moves})  # {case.layout}")
        given = [f"{n}={n}" for n in ("mask", "payload") if n in case.tensors()]
        given += [f"{name}={text}" for name, text in case.options().items()]
        return "\n".join([*lines, f"print({case.function}({case.positional()}, {', '.join(given)}))"]) + "\n"


def called(case: Sort, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """What the library gives, by name."""
    names = {**NAMES, **tensors}
    options = {name: eval(text, names) for name, text in case.options().items()}
    options.update({name: tensors[name] for name in ("mask", "payload") if name in tensors})
    out = eval(f"{case.function}({case.positional()}, **options)", {**names, "options": options})
    if isinstance(out, Tensor):
        return {"result": out}
    return {name: t for name, t in out._asdict().items() if t is not None}


def dense(case: Sort, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """What the formulas give, by the same names: each row by itself, its present items side by side."""
    x = tensors["x"].movedim(case.dim, -1)
    shape = x.shape
    mask = (
        tensors["mask"].expand(case.shape).movedim(case.dim, -1) if case.mask else torch.ones_like(x, dtype=torch.bool)
    )
    method = eval(case.method, NAMES)
    sigmoid = eval(case.options()["relax"], {**NAMES, **tensors})
    payload = x.unsqueeze(-1)
    if case.payload is not None:
        payload = tensors["payload"].reshape(*case.shape, math.prod(case.payload))
        payload = payload.movedim(case.dim % len(case.shape), -2)
    ks = tensors["k"] if "k" in tensors else torch.full(shape[:-1], float(case.count), dtype=torch.float64)
    flat = zip(
        x.reshape(-1, shape[-1]),
        mask.reshape(-1, shape[-1]),
        payload.reshape(-1, *payload.shape[-2:]),
        ks.reshape(-1),
        strict=True,
    )
    rows = [_dense_row(case, *row, sigmoid, method) for row in flat]
    empty = _dense_row(
        case,
        x.new_zeros(case.items),
        torch.ones(case.items, dtype=torch.bool),
        payload.new_zeros(*payload.shape[-2:]),
        x.new_zeros(()),
        sigmoid,
        method,
    )
    found = {}
    for name, one in empty.items():
        stacked = torch.stack([row[name] for row in rows]) if rows else one.new_zeros(0, *one.shape)
        stacked = stacked.reshape((*shape[:-1], *one.shape))
        if name == "payload":
            stacked = stacked.movedim(-2, case.dim % len(shape)).reshape(tensors["payload"].shape)
        elif name != "permutation" and one.dim():
            stacked = stacked.movedim(-1, case.dim)
        found[name] = stacked
    return found


def _dense_row(
    case: Sort, x: Tensor, mask: Tensor, payload: Tensor, k: Tensor, sigmoid: Sigmoid, method: Any
) -> dict[str, Tensor]:
    n, present, absent = len(x), mask.nonzero().squeeze(1), (~mask).nonzero().squeeze(1)
    items, m = x[present], len(present)
    down = case.descending
    if case.function == "soft_topk_mask":
        items = items if down else -items
        soft = x.new_zeros(n).index_copy(
            0,
            present,
            dense_sorts.threshold_row(items, k, sigmoid) if not isinstance(sigmoid, Heaviside) else _shared(items, k),
        )
        if not case.hard:
            return {"result": soft}
        shares = (k.detach() - torch.arange(m)).clamp(0, 1)
        order = items.detach().argsort(descending=True, stable=True)
        return {"result": _through(x.detach().new_zeros(n).index_copy(0, present[order], shares), soft)}
    if case.function == "soft_median" and isinstance(method, str):
        return {"result": dense_sorts.median_row(items, sigmoid, method, 3) if m else x.new_full((), math.nan)}
    crisp = items.detach().argsort(descending=down, stable=True)
    if case.function == "soft_rank":
        soft = dense_sorts.rank_row(items, sigmoid, method, down)
        soft = _through(crisp.argsort().to(x.dtype), soft) if case.hard else soft
        late = torch.arange(m, n, dtype=x.dtype)
        return {"result": x.new_zeros(n).index_copy(0, present, soft).index_copy(0, absent, late)}
    if case.function in ("soft_quantile", "soft_median"):
        down = False
    values, p = dense_sorts.sort_row(items, sigmoid, method, down, case.steps)
    moved = p @ payload[present]
    if case.hard:
        moved = _through(payload[present][crisp], moved)
        values, p = _through(items[crisp], values), _through(torch.eye(m, dtype=x.dtype)[crisp], p)
    values = torch.cat([values, x[absent].detach()])
    whole = x.new_zeros(n, n)
    whole[torch.arange(m, n), absent] = 1
    whole[:m, present] = p
    if case.function in ("soft_quantile", "soft_median"):
        level = case.level if case.function == "soft_quantile" else 0.5
        found = [_at(values[:m], q) for q in (level if isinstance(level, list) else [level])]
        return {"result": torch.stack(found) if isinstance(level, list) else found[0]}
    if case.function == "soft_argsort":
        return {"result": whole @ torch.arange(n, dtype=x.dtype)}
    moved = torch.cat([moved, payload[absent].detach()])
    if case.function == "soft_topk":
        count = int(case.count)
        found = {"values": values[:count], "indices": (whole @ torch.arange(n, dtype=x.dtype))[:count]}
        whole = whole[:count]
    else:
        found = {"values": values} | ({"payload": moved} if case.payload is not None else {})
    return found | ({"permutation": whole} if case.permutation else {})


def _through(crisp: Tensor, soft: Tensor) -> Tensor:
    """Crisp values with the gradient of the soft ones."""
    return crisp.detach() + torch.where(soft.isfinite(), soft - soft.detach(), 0.0)


def _shared(x: Tensor, k: Tensor) -> Tensor:
    """Crisp memberships; equal items share what is left for them alike."""
    found = [((k - (x > item).sum()) / (x == item).sum()).clamp(0, 1) for item in x]
    return torch.stack(found).detach() if found else x.detach()


def _at(values: Tensor, level: float) -> Tensor:
    if not len(values):
        return values.new_full((), math.nan)
    place = level * (len(values) - 1)
    low, high, share = math.floor(place), math.ceil(place), place - math.floor(place)
    if low == high or (values[low].isinf() and values[low] == values[high]):
        return values[low]
    return (1 - share) * values[low] + share * values[high]


def _items(kind: str, shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    x = torch.randn(shape, generator=generator, dtype=torch.float64)
    if kind in ("ties", "infinities"):
        x = (2 * x).round() / 2
    if kind == "equal":
        x = torch.full_like(x, 0.75)
    if kind == "wide":
        x = x * 10.0 ** torch.randint(-3, 3, shape, generator=generator)
    if kind == "infinities":
        x = torch.where(x.abs() > 1, x.sign() * torch.inf, x)
    if kind == "nan":
        x = torch.where(torch.rand(shape, generator=generator) < 0.1, torch.nan, x)
    return x


def _laid_out(x: Tensor, layout: str) -> Tensor:
    """The same numbers in another memory layout; expanded ones repeat the first row."""
    if layout == "transposed" and x.dim() > 1:
        return x.transpose(0, -1).contiguous().transpose(0, -1)
    if layout == "strided":
        return torch.stack([x, torch.full_like(x, torch.nan)], -1)[..., 0]
    if layout == "expanded" and x.dim() > 1 and x.shape[0]:
        return x[:1].expand(x.shape)
    return x


def _sound(case: Sort, t: Tensor, x: Tensor) -> Tensor:
    """What does not belong to a row with a NaN, as it is; the rest as 0."""
    if case.values != "nan":
        return t
    spoiled = x.detach().isnan()
    along = case.dim % len(case.shape)
    spoiled = spoiled.any(along, keepdim=True)
    if t.shape[: spoiled.dim()] == x.shape or (t.dim() == x.dim() and t.shape != x.shape and t.dim() == spoiled.dim()):
        spoiled = spoiled.reshape((*spoiled.shape, *([1] * (t.dim() - spoiled.dim()))))
    else:
        # The sorted dimension went, or (in a permutation) two came last
        spoiled = spoiled.squeeze(along)
        spoiled = spoiled.reshape((*spoiled.shape, *([1] * (t.dim() - spoiled.dim()))))
    return torch.where(spoiled, 0.0, t)


def _some(t: Tensor) -> bool:
    return t.is_floating_point() and bool(t.isfinite().any())


def _answers(function: str, method: str) -> bool:
    if function == "soft_topk_mask":
        return method == "OddEven()"
    if method in ("'fast'", "'paper'"):
        return function == "soft_median"
    task = {"soft_median": "quantile"}.get(function, function.removeprefix("soft_"))
    return task in eval(method, NAMES).answers


def _valid(case: Sort) -> Sort:
    """The case without what its function and method do not take."""
    changes: dict[str, Any] = {}
    dims = len(case.rows) + 1
    if not -dims <= case.dim < dims:
        changes["dim"] = -1
    method = case.method
    if method.startswith("Permutahedron"):
        changes.update(payload=None, permutation=False, learned=False, mask="")
    if not isinstance(eval(method, NAMES), (OddEven, type(NAMES["Bitonic"]()), Pairwise)):
        changes.update(backend="auto", steps=None)
        if case.values in ("infinities", "nan"):
            changes["values"] = "normal"
        if case.sigmoid not in ("Logistic", "Heaviside"):
            changes["sigmoid"] = "Logistic"
    if method == "Pairwise()":
        changes["steps"] = None
    if case.sigmoid == "Heaviside":
        changes["learned"] = False
    return dataclasses.replace(case, **changes)


__all__ = ["Logistic", "Permutahedron", "Sort", "Sorts"]
