"""The rows of the transform matrix: every public operation, with typical inputs."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from algonet import relax
from algonet.core.backends import BACKENDS
from algonet.ifs import Poisson, chaos_game, contraction, smooth_raster
from algonet.nn import FiniteDifferences, Insert, SmoothDepth, SmoothGraph, finite_differences
from algonet.ranking import ndcg_loss, spearman_loss
from algonet.render import Camera, FilteredCoverage, render_attributes
from algonet.smooth_python.algorithms import bubble_sort
from algonet.sorting import (
    Bitonic,
    soft_argsort,
    soft_median,
    soft_quantile,
    soft_rank,
    soft_sort,
    soft_topk,
    soft_topk_mask,
)
from algonet.speech import Inventory, mel_envelope, synthesize
from algonet.while_lang import WhileProgram
from helpers.contract import Case, Inputs, normal, uniform

from .transforms import Operation

FEW = "has no kernel of its own: a few torch operations, which run on every device and leave nothing to fuse"
PLAIN = "has no kernel of its own: plain torch operations; on a GPU, record them as a CUDA graph"
FACES = torch.tensor([[0, 1, 2], [3, 2, 1]])
CAMERA = Camera.look_at((0.0, 0.0, 3.0))
MULTIPLY = {backend: WhileProgram.library("multiply", backend=backend) for backend in ("auto", *BACKENDS)}
CHOICES = torch.randint(0, 3, (4, 6), generator=torch.Generator().manual_seed(0))
SOFT = relax.Logistic(2.0)


def _pure(name: str, function: Callable[..., Any], inputs: Inputs) -> Operation:
    return Operation(Case(name, function, inputs), why={"CPU kernel": FEW, "GPU kernel": FEW})


def _plain(name: str, function: Callable[..., Any], inputs: Inputs) -> Operation:
    return Operation(Case(name, function, inputs, factor=4.0), why={"CPU kernel": PLAIN, "GPU kernel": PLAIN})


def _kernelled(name: str, function: Callable[..., Any], inputs: Inputs, **options: Any) -> Operation:
    why = options.pop("why", {})
    return Operation(Case(name, function, inputs, **options), cpu_kernel="numba", gpu_kernel="triton", why=why)


def _weighted(batch: int, dtype: torch.dtype, generator: torch.Generator) -> tuple[Tensor, ...]:
    return *normal(4)(batch, dtype, generator), *uniform(4, low=0.2)(batch, dtype, generator)


def _keyed(batch: int, dtype: torch.dtype, generator: torch.Generator) -> tuple[Tensor, ...]:
    return *normal(5)(batch, dtype, generator), *normal(5, 2)(batch, dtype, generator)


def _scene(batch: int, dtype: torch.dtype, generator: torch.Generator) -> tuple[Tensor, ...]:
    corners = torch.tensor([[-1.0, -0.8, 0.2], [0.9, -0.7, 0.0], [-0.1, 1.0, -0.3], [1.1, 0.9, 0.5]]).double()
    noise = torch.randn(batch, 4, 3, generator=generator, dtype=torch.float64)
    colours = torch.rand(batch, 4, 2, generator=generator, dtype=torch.float64)
    return (corners + 0.1 * noise).to(dtype), colours.to(dtype)


def _render(vertices: Tensor, colours: Tensor, backend: str = "auto") -> Any:
    coverage = FilteredCoverage(relax.StudentT(8, scale=0.8))
    return render_attributes(
        vertices,
        FACES.to(vertices.device),
        colours,
        CAMERA,
        size=(2, 3),
        coverage=coverage,
        epsilon=1e-12,
        backend=backend,
    )


def _program(x1: Tensor, x2: Tensor, backend: str = "auto") -> Tensor:
    return MULTIPLY[backend](x1=x1, x2=x2)


def _raster(points: Tensor, backend: str = "auto") -> Tensor:
    return smooth_raster(points, size=(4, 5), sigma=0.8, extent=(0, 1, 0, 1), aggregate=Poisson(), backend=backend)


def _chaos(parameters: Tensor, backend: str = "auto") -> Tensor:
    return chaos_game(parameters, CHOICES.to(parameters.device), backend=backend)


def _maps(batch: int, dtype: torch.dtype, generator: torch.Generator) -> tuple[Tensor, ...]:
    return uniform(3, 6, low=-0.5, high=0.0)(batch, dtype, generator)


def _smooth(x: Tensor, backend: str = "auto") -> Any:
    return bubble_sort(x, batched=x.dim() > 1, backend=backend)


def _utterance(batch: int, dtype: torch.dtype, generator: torch.Generator) -> tuple[Tensor, ...]:
    parts = (
        uniform(2, 3, low=0.1),
        uniform(2, low=0.01, high=0.02),
        uniform(2, low=100.0, high=180.0),
        uniform(2, low=0.5),
    )
    return tuple(part(batch, dtype, generator)[0] for part in parts)


SPEECH = {"inventory": Inventory.of("a s t"), "sample_rate": 2000, "relax": relax.Logistic(300.0)}
WHITE = torch.randn(4, 21, 2, generator=torch.Generator().manual_seed(0))


def _waveform(*score: Tensor) -> Tensor:
    return synthesize(*score, white=WHITE.to(score[0]), length=40, harmonics=2, **SPEECH)


def _envelope(*score: Tensor) -> Tensor:
    return mel_envelope(*score, frames=3, hop=20, bands=4, **SPEECH)


GRADES = torch.tensor([2.0, 0.0, 1.0, 0.0, 3.0])


def _ndcg(x: Tensor, backend: str) -> Tensor:
    return ndcg_loss(x, GRADES.to(x).expand(x.shape), relax=SOFT, reduction="none", backend=backend)


def _spearman(x: Tensor, backend: str) -> Tensor:
    return spearman_loss(x, GRADES.to(x).expand(x.shape), relax=SOFT, reduction="none", backend=backend)


SORT_CASES = {
    "soft_sort": (lambda x, p, backend="auto": soft_sort(x, relax=SOFT, payload=p, backend=backend)[:2], _keyed),
    "soft_sort (bitonic)": (
        lambda x, backend="auto": soft_sort(x, relax=SOFT, method=Bitonic(), backend=backend).values,
        normal(5),
    ),
    "soft_rank": (lambda x, backend="auto": soft_rank(x, relax=SOFT, backend=backend).to(x.dtype), normal(5)),
    "soft_argsort": (lambda x, backend="auto": soft_argsort(x, relax=SOFT, backend=backend).to(x.dtype), normal(5)),
    "soft_topk": (lambda x, backend="auto": soft_topk(x, 2, relax=SOFT, backend=backend).values, normal(5)),
    "soft_topk_mask": (lambda x, backend="auto": soft_topk_mask(x, 2.5, relax=SOFT, backend=backend), normal(5)),
    "ndcg_loss": (lambda x, backend="auto": _ndcg(x, backend), normal(5)),
    "spearman_loss": (lambda x, backend="auto": _spearman(x, backend), normal(5)),
    "soft_quantile": (lambda x, backend="auto": soft_quantile(x, 0.3, relax=SOFT, backend=backend), normal(5)),
    "soft_median": (lambda x, backend="auto": soft_median(x, relax=SOFT, backend=backend), normal(6)),
}


def _in_dtype(module: nn.Module) -> Callable[..., Any]:
    """A module with parameters, in the precision of what comes in; half precisions compute in float32."""
    twins = {dtype: copy.deepcopy(module).to(dtype) for dtype in (torch.float32, torch.float64)}

    def run(x: Tensor) -> Any:
        wide = x.dtype if x.dtype in twins else torch.float32
        return twins[wide](x.to(wide)).to(x.dtype)

    return run


def _graph() -> nn.Module:
    torch.manual_seed(0)
    return SmoothGraph({"linear": nn.Linear(4, 4), "sort": torch.sort, "differences": FiniteDifferences(pad="zero")})


def _stack() -> nn.Module:
    torch.manual_seed(0)
    return SmoothDepth([nn.Sequential(nn.Linear(4, 4), nn.Tanh()) for _ in range(3)])


OPERATIONS: list[Operation] = [
    _pure("sigmoids (Logistic)", relax.Logistic(2.0), normal(4)),
    _pure("exits (Sech)", relax.Sech(2.0), normal(4)),
    _pure("noise (StudentT)", relax.StudentT(8).tail, uniform(4, low=0.1, high=3.0)),
    _pure("t-conorms (Probabilistic)", relax.Probabilistic().reduce, uniform(4, low=0.05, high=0.9)),
    _pure("weighted_softmax", relax.weighted_softmax, _weighted),
    _pure("weighted_softmin", relax.weighted_softmin, _weighted),
    _pure("soft_max", lambda x: relax.soft_max(x, steepness=2.0), normal(4)),
    _pure("soft_min", lambda x: relax.soft_min(x, steepness=2.0), normal(4)),
    _pure("soft_argmax", lambda x: relax.soft_argmax(x, steepness=2.0).to(x), normal(4)),
    _pure("soft_argmin", lambda x: relax.soft_argmin(x, steepness=2.0).to(x), normal(4)),
    _pure("SmoothDepth", _in_dtype(_stack()), normal(4)),
    _pure("SmoothGraph", _in_dtype(_graph()), normal(4)),
    _pure("Insert (WHILE-program)", Insert(MULTIPLY["auto"]), uniform(2, low=0.5, high=2.5)),
    _pure("finite_differences", lambda x: finite_differences(x, (-2, -1)), normal(3, 4)),
    *(_kernelled(name, function, inputs) for name, (function, inputs) in SORT_CASES.items()),
    _pure("soft_median (fast)", lambda x: soft_median(x, method="fast", degree=2, relax=SOFT), normal(6)),
    _kernelled("WHILE-program", _program, uniform(count=2, low=0.5, high=2.5)),
    _kernelled("@smooth (bubble_sort)", _smooth, normal(4)),
    _pure("contraction", contraction, _maps),
    _kernelled("chaos_game", _chaos, _maps),
    _kernelled("smooth_raster", _raster, uniform(6, 2)),
    _kernelled("render_attributes", _render, _scene),
    _plain("synthesize", _waveform, _utterance),
    _plain("mel_envelope", _envelope, _utterance),
]
