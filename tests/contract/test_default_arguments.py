"""What people call, as they call it: default arguments, usual sizes, ties and masks among them.

Every output's gradient by every input is finite, and what central differences in float64 say. (`SmoothRenderer` has a file
of its own, `tests/render/test_module.py`.)
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from algonet import relax
from algonet.ifs import IFS, chaos_game, smooth_raster
from algonet.nn import Insert, SmoothDepth, SmoothGraph, WeightedSoftmax
from algonet.ranking import (
    auc_loss,
    average_precision_loss,
    kendall_loss,
    ndcg_loss,
    pairwise_hinge_loss,
    recall_at_k_loss,
    spearman_loss,
)
from algonet.render import Camera, Mesh, Targets, fit_camera, fit_mesh, fit_texture, icosphere
from algonet.smooth_python import algorithms
from algonet.sorting import (
    SoftArgsort,
    SoftMedian,
    SoftQuantile,
    SoftRank,
    SoftSort,
    SoftTopK,
    SoftTopKMask,
    expected_swaps,
    soft_argsort,
    soft_median,
    soft_quantile,
    soft_rank,
    soft_sort,
    soft_topk,
    soft_topk_mask,
)
from algonet.speech import SmoothSynthesizer
from algonet.while_lang import WhileProgram
from helpers.differences import assert_gradients_are_right


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def tied(*shape: int) -> Tensor:
    return (2 * draw(*shape)).round() / 2


X, TIED = draw(4, 60), tied(4, 60)
MASK = draw(4, 60, seed=1) > -0.5
MASK[3] = False
SORTS: dict[str, Callable[..., Tensor | tuple]] = {
    "soft_sort": lambda x, **o: soft_sort(x, payload=x.square(), **o)[:2],
    "soft_sort, permutation": lambda x, **o: soft_sort(x, return_permutation=True, **o)[2],
    "soft_argsort": soft_argsort,
    "soft_rank": soft_rank,
    "soft_topk": lambda x, **o: soft_topk(x, 5, **o)[:2],
    "soft_quantile": lambda x, **o: soft_quantile(x, [0.1, 0.5], **o),
    "soft_median": soft_median,
    "soft_median, fast": lambda x, **o: soft_median(x, method="fast", **o),
    "soft_topk_mask": lambda x, **o: soft_topk_mask(x, 5, **o),
    "expected_swaps": expected_swaps,
    "SoftSort": lambda x, **o: SoftSort()(x, **o),
    "SoftArgsort": lambda x, **o: SoftArgsort()(x, **o),
    "SoftRank": lambda x, **o: SoftRank()(x, **o),
    "SoftTopK": lambda x, **o: SoftTopK(3)(x, **o)[:2],
    "SoftQuantile": lambda x, **o: SoftQuantile(0.3)(x, **o),
    "SoftMedian": lambda x, **o: SoftMedian()(x, **o),
    "SoftTopKMask": lambda x, **o: SoftTopKMask(7)(x, **o),
}


def outputs(found: Any) -> list[Tensor]:
    """The floating results, without those of rows that have none (a median of nothing is NaN)."""
    listed: list[Tensor] = [found] if isinstance(found, Tensor) else [t for t in found if isinstance(t, Tensor)]
    return [torch.where(t.isfinite(), t, 0.0) for t in listed if t.is_floating_point()]


@pytest.mark.parametrize("kind", ["distinct", "tied", "masked"])
@pytest.mark.parametrize("name", SORTS)
def test_sorts(name, kind):
    if kind == "masked":
        # Absent items come back as they are, and have no gradient on purpose: they stay where they are
        call = lambda x: outputs(SORTS[name](torch.where(MASK, x, TIED), mask=MASK))  # noqa: E731
    else:
        call = lambda x: outputs(SORTS[name](x))  # noqa: E731
    assert_gradients_are_right(call, {"x": X if kind == "distinct" else TIED})


LOSSES = {
    "ndcg": ndcg_loss,
    "average precision": average_precision_loss,
    "recall": lambda s, r, **o: recall_at_k_loss(s, r, 10, **o),
    "spearman": spearman_loss,
    "kendall": kendall_loss,
    "auc": auc_loss,
    "hinge": pairwise_hinge_loss,
}


@pytest.mark.parametrize("kind", ["distinct", "tied", "masked"])
@pytest.mark.parametrize("name", LOSSES)
def test_ranking_losses(name, kind):
    grades = draw(4, 60, seed=3).clamp_min(0).round()
    # The hinge has corners where two scores differ by its margin, as tied ones may; tau-b counts the pairs that differ
    scores = X if kind == "distinct" or name in ("hinge", "kendall") else TIED
    options = {"mask": MASK} if kind == "masked" else {}
    assert_gradients_are_right(lambda x: outputs(LOSSES[name](x, grades, **options)), {"x": scores})


def of_module(module: nn.Module, *inputs: Tensor) -> tuple[Callable[..., list[Tensor]], dict[str, Tensor]]:
    """A call of the module as a function of its inputs, and of its parameters and softness."""
    module = module.double()
    names = [name for name, t in [*module.named_parameters(), *module.named_buffers()] if t.is_floating_point()]
    state = dict([*module.named_parameters(), *module.named_buffers()])
    soft = {name.replace(".", "_"): name for name in names}

    def call(**given: Tensor) -> list[Tensor]:
        own = {full: given[short] for short, full in soft.items()}
        return outputs(torch.func.functional_call(module, own, tuple(given[f"input{i}"] for i in range(len(inputs)))))

    moving = {short: state[full].detach() for short, full in soft.items()}
    return call, {**moving, **{f"input{i}": t for i, t in enumerate(inputs)}}


def _choices() -> nn.Module:
    torch.manual_seed(0)
    return SmoothGraph({"linear": nn.Linear(6, 6), "tanh": torch.tanh})


def _stack() -> nn.Module:
    torch.manual_seed(0)
    return SmoothDepth([nn.Sequential(nn.Linear(6, 6), nn.Tanh()) for _ in range(3)])


BETWEEN = 0.5 + 2 * draw(16, 2).sigmoid()
LAYERS: dict[str, tuple[Callable[[], nn.Module], tuple[Tensor, ...]]] = {
    "WhileProgram": (lambda: WhileProgram.library("multiply"), (BETWEEN[:, 0], BETWEEN[:, 1])),
    "WhileProgram, trainable": (lambda: WhileProgram.library("add", trainable=True), (BETWEEN[:, 0], BETWEEN[:, 1])),
    "Insert": (lambda: Insert(WhileProgram.library("multiply")), (BETWEEN,)),
    "WeightedSoftmax": (WeightedSoftmax, (draw(8, 20), draw(8, 20, seed=1).exp())),
    "SmoothDepth": (_stack, (draw(8, 6),)),
    "SmoothGraph": (_choices, (draw(8, 6),)),
}


@pytest.mark.parametrize("name", LAYERS)
def test_layers(name):
    make, inputs = LAYERS[name]
    assert_gradients_are_right(*of_module(make(), *inputs))


@pytest.mark.parametrize("preset", ["fern", "sierpinski", "dragon"])
def test_function_systems(preset):
    system = IFS.preset(preset, points=2048).double()
    call = lambda **own: [torch.func.functional_call(system, own, ((64, 64),))]  # noqa: E731
    # Windows end where a point has 1e-4 of its mass left, which differences see
    assert_gradients_are_right(call, {"parameters_": system.parameters_, "scale": system.scale}, relative=5e-3)


def test_the_chaos_game_and_its_picture():
    choices = torch.randint(0, 3, (8, 40), generator=torch.Generator().manual_seed(0))
    maps = -0.6 + 0.2 * draw(3, 6)
    assert_gradients_are_right(lambda maps: [chaos_game(maps, choices)], {"maps": maps})
    # Windows are cut where a point has 1e-4 of its mass left, which differences see
    call = lambda points, colours: [smooth_raster(points, (32, 40), colours=colours, epsilon=1e-12)]  # noqa: E731
    assert_gradients_are_right(call, {"points": draw(300, 2).sigmoid(), "colours": draw(300, 3).sigmoid()})


def test_the_synthesizer():
    synthesizer = SmoothSynthesizer(8000).double().learnable()
    score = synthesizer.score("s a t")
    names = ("formants", "bandwidths", "gains", "noise", "steepness")

    def call(**given: Tensor) -> list[Tensor]:
        own = {name: given.pop(name) for name in names}
        # The spectrogram is a logarithm: silence is left out
        return [torch.func.functional_call(synthesizer, own, (), given).waveform]

    state = dict([*synthesizer.named_parameters(), *synthesizer.named_buffers()])
    inputs = {name: state[name].detach() for name in names}
    assert_gradients_are_right(call, {**inputs, **score._asdict()}, absolute=1e-3)


PROGRAMS: dict[str, tuple[Callable[..., Tensor | tuple], tuple[Tensor, ...]]] = {
    "bubble_sort": (lambda x: algorithms.bubble_sort(x, batched=True), (draw(16, 7),)),
    "bubble_sort, tied": (lambda x: algorithms.bubble_sort(x, batched=True), (tied(16, 7),)),
    "binary_search": (
        lambda items, x: algorithms.binary_search(items, x, batched=True), (draw(16, 9).sort(-1).values, draw(16))
    ),
    "levenshtein": (lambda a, b: algorithms.levenshtein(a, b, batched=True), (draw(8, 4), draw(8, 5, seed=1))),
}  # fmt: skip


@pytest.mark.parametrize("name", PROGRAMS)
def test_smooth_functions(name):
    function, inputs = PROGRAMS[name]
    call = lambda **given: outputs(function(*given.values()))  # noqa: E731
    # Ways that weigh less than 1e-6 are dropped, which differences see
    assert_gradients_are_right(call, {f"input{i}": t for i, t in enumerate(inputs)}, absolute=2e-3)


def test_softmaxes():
    for function in (relax.soft_max, relax.soft_min, relax.soft_argmax, relax.soft_argmin):
        assert_gradients_are_right(lambda x, f=function: [f(x)], {"x": TIED})


def _degenerate_ball() -> Mesh:
    ball = icosphere(2)
    return ball.replace(faces=torch.cat([ball.faces, ball.faces[:2, [0, 0, 1]]]))


def test_fits_begin_well_from_meshes_with_degenerate_faces():
    """A few steps of each fit from default arguments: everything that comes back is finite, and has moved."""
    mesh = _degenerate_ball().replace(vertex_colors=torch.rand(162, 3))
    eyes = torch.tensor([[0.0, 0.0, 3.0], [2.0, 1.0, -2.0]])
    cameras = Camera.look_at(eyes)
    pictures = torch.zeros(2, 24, 32, 4)
    pictures[:, 6:18, 8:24] = torch.tensor([0.9, 0.2, 0.1, 1.0])
    targets = Targets(cameras, rgb=pictures)
    fitted = fit_mesh(targets, template=mesh, steps=3)
    assert fitted.mesh.vertices.isfinite().all()
    assert not torch.equal(fitted.mesh.vertices, mesh.vertices)
    posed = fit_camera(mesh, pictures[0], cameras[0], steps=3)
    assert posed.camera.matrix.isfinite().all()
    painted = fit_texture(mesh, targets, size=128)
    assert painted.texture is not None
    assert painted.texture.isfinite().all()
