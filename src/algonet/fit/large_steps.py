"""Large steps: gradients of vertices smoothed over the surface before they are followed.

Minimising over u with v = (I + stiffness L)^-1 u, L the graph Laplacian of the mesh, moves whole regions at once where a plain
step moves single vertices and crumples the surface (Nicolet, Jacobson, Jakob: "Large steps in inverse rendering of geometry").
Written in v, with M = I + stiffness L and g the gradient by v:

    g_u = M^-1 g,    m = b1 m + (1 - b1) M^-1 g_u,    s = b2 s + (1 - b2) max g_u^2,    v = v - rate m / sqrt(s)

which is Adam on u whose second moment is one number for all coordinates. u itself is never needed, so the vertices carry no
error of a solve; only the direction does.

The solves are Chebyshev series in M. The spectrum of M lies in [1, 1 + stiffness * max(degree_i + degree_j)] (Anderson and
Morley), so the number of terms is known beforehand: sqrt(condition) / 2 * ln(2 sqrt(condition) / tolerance), about 95 at the
default, each one product with L. Unlike conjugate gradients they take no inner products, so nothing waits for the device, and
one pass gives both M^-1 g and M^-2 g.
"""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from algonet.core.checks import check_spec
from algonet.core.tracing import outside_autocast
from algonet.render import Mesh
from algonet.render.meshes import check_faces

#: What an optimisation has besides its vertices.
STATE = ("faces", "momentum", "second_moment", "radius", "steps")
#: Solves are this accurate, relative to the right-hand side: a direction of descent needs no more.
TOLERANCE = 1e-4


@dataclass(frozen=True)
class LargeSteps:
    """How vertices are moved: along gradients smoothed by (I + stiffness L)^-1, at one speed for the whole mesh.

    `stiffness` is the paper's lambda: a step spreads over about sqrt(stiffness) edges; 0 is Adam with one second moment.
    `learning_rate` is how far everything would move per step if all gradients agreed, in units of the starting mesh's radius
    (half its largest extent); what differs from place to place moves less, by 1 + stiffness * (its eigenvalue of L).

    >>> from algonet.render import icosphere
    >>> state = LargeSteps(learning_rate=0.1).start(icosphere(2))
    >>> for _ in range(60):
    ...     (state.vertices - 1.0).square().sum().backward()
    ...     state.step()
    >>> bool((state.vertices.mean(0) - 1).abs().max() < 0.1)
    True
    """

    stiffness: float = 19.0
    learning_rate: float = 1.0
    betas: tuple[float, float] = (0.9, 0.99)

    def __post_init__(self):
        if not 0 <= self.stiffness < math.inf:
            raise ValueError(f"LargeSteps: `stiffness` must be finite and not negative, got {self.stiffness!r}.")
        if not 0 < self.learning_rate < math.inf:
            raise ValueError(f"LargeSteps: `learning_rate` must be positive and finite, got {self.learning_rate!r}.")
        if len(self.betas) != 2 or not all(0 <= b < 1 for b in self.betas):
            raise ValueError(f"LargeSteps: `betas` must be two numbers in [0, 1), got {self.betas!r}.")

    def start(self, mesh: Mesh) -> LargeStepsState:
        """The state of an optimisation that begins at the mesh's vertices."""
        return LargeStepsState(self, mesh.vertices, mesh.faces)


class LargeStepsState:
    """Vertices under way: `vertices` (V, 3) is a leaf; fill its gradient by any loss, then call `step`."""

    def __init__(self, options: LargeSteps, vertices: Tensor, faces: Tensor):
        check_spec("LargeSteps", "vertices", vertices, "V 3", hint="; one mesh at a time")
        self.options = options
        self.vertices = vertices.detach().clone().requires_grad_()
        self.faces = faces
        self.system = SmoothingSystem(faces, vertices, options.stiffness)
        self.radius = (vertices.detach().amax(0) - vertices.detach().amin(0)).amax() / 2
        self.momentum = torch.zeros_like(self.vertices, requires_grad=False)
        self.second_moment = vertices.new_zeros(())
        self.steps = 0

    @torch.no_grad()
    def step(self, rate: float = 1.0) -> None:
        """Follow the gradient in `vertices.grad`, `rate` times as fast as the learning rate says, and clear it."""
        gradient = self.vertices.grad
        if gradient is None:
            raise ValueError("LargeSteps.step: `vertices` have no gradient; call backward() on a loss of them first.")
        b1, b2 = self.options.betas
        once, twice = self.system.solve(gradient, 2)
        self.steps += 1
        self.momentum = torch.lerp(self.momentum, twice, 1 - b1)
        self.second_moment = torch.lerp(self.second_moment, once.square().amax(), 1 - b2)
        size = (self.second_moment / (1 - b2**self.steps)).sqrt() + torch.finfo(gradient.dtype).tiny
        speed = rate * self.options.learning_rate / (1 - b1**self.steps)
        # Divided first: without any gradient this is 0 / tiny
        self.vertices -= self.momentum / size * (self.radius * speed)
        self.vertices.grad = None

    def replace(self, vertices: Tensor, faces: Tensor, momentum: Tensor) -> None:
        """Go on with other vertices and faces, as after remeshing; `momentum` (V, 3) belongs to the new vertices."""
        self.vertices = vertices.detach().clone().requires_grad_()
        self.faces, self.momentum = faces, momentum.detach().clone()
        self.system = SmoothingSystem(faces, vertices, self.options.stiffness)

    def state_dict(self) -> dict[str, Any]:
        """What a run needs to go on from here."""
        return {"vertices": self.vertices.detach(), **{name: getattr(self, name) for name in STATE}}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a `state_dict`."""
        like = self.vertices
        self.replace(state["vertices"].to(like), state["faces"].to(self.faces), state["momentum"].to(like))
        self.second_moment, self.radius = state["second_moment"].to(like), state["radius"].to(like)
        self.steps = int(state["steps"])


class SmoothingSystem:
    """M = I + stiffness L of a mesh, L = degree - adjacency: `solve` applies powers of its inverse to columns (V, C) as `like`.

    Kept as the rows of 2 S, S = (M - middle) / half of spectrum [-1, 1], each vertex among its own neighbours."""

    def __init__(self, faces: Tensor, like: Tensor, stiffness: float, tolerance: float = TOLERANCE):
        count = len(like)
        check_faces("SmoothingSystem: `faces`", faces, count)
        faces, own = faces.long().to(like.device), torch.arange(count, device=like.device)
        a, b = torch.cat([faces, faces.roll(1, 1)]).T.flatten(), torch.cat([faces.roll(1, 1), faces]).T.flatten()
        keys = torch.cat([a * count + b, own * (count + 1)]).unique()
        rows, self.neighbors = keys // count, keys % count
        entries, beside = torch.bincount(rows, minlength=count), rows != self.neighbors
        self.offsets = torch.cat([entries.new_zeros(1), entries.cumsum(0)])
        degree = entries - 1
        self.tolerance, widest = tolerance, ((degree[rows] + degree[self.neighbors]) * beside).max()
        self.largest = 1 + stiffness * int(widest)
        middle, half = (self.largest + 1) / 2, (self.largest - 1) / 2
        own_values = 1 + stiffness * degree.double() - middle
        self.values = (own_values[rows].where(~beside, -stiffness) * (2 / max(half, 1e-30))).to(like)
        self._matrix: Tensor | None = None

    @outside_autocast
    def solve(self, columns: Tensor, powers: int = 1) -> tuple[Tensor, ...]:
        """M^-1 columns, M^-2 columns, ... up to `powers`; each within `tolerance` of |columns|."""
        coefficients = _series(self.largest, powers, self.tolerance)
        recur = self._recur_sparse if columns.is_cuda else self._recur_bagged
        terms = [columns]
        if len(coefficients) > 1:
            terms.append(recur(columns, columns.new_zeros(()).expand_as(columns)) / 2)
        while len(terms) < len(coefficients):
            terms.append(recur(terms[-1], terms[-2]))
        weights = torch.from_numpy(coefficients).to(columns)
        return tuple(torch.tensordot(weights.T, torch.stack(terms), dims=1).unbind(0))

    def _recur_bagged(self, term: Tensor, before: Tensor) -> Tensor:
        """The Chebyshev polynomial after `term`: 2 S term - before."""
        # A sum over neighbours without a sparse tensor: those need MKL on the CPU, which not every build has
        summed = torch.nn.functional.embedding_bag(
            self.neighbors, term, self.offsets, mode="sum", per_sample_weights=self.values, include_last_offset=True
        )
        return summed.sub_(before)

    def _recur_sparse(self, term: Tensor, before: Tensor) -> Tensor:
        """The same by a sparse matrix, as one kernel: on a GPU launches are what it costs."""
        if self._matrix is None:
            with warnings.catch_warnings():
                # CSR is "in beta"; all it is asked for here is a product
                warnings.simplefilter("ignore")
                self._matrix = torch.sparse_csr_tensor(
                    self.offsets, self.neighbors, self.values, (len(term), len(term)), check_invariants=False
                )
        return torch.addmm(before, self._matrix, term, beta=-1)


class _Solve(torch.autograd.Function):
    """M^-1 rhs. M is symmetric, so the derivative is the same solve, and so is the derivative's."""

    @staticmethod
    def forward(ctx: Any, rhs: Tensor, system: SmoothingSystem) -> Tensor:
        ctx.system = system
        return system.solve(rhs)[0]

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        return _Solve.apply(grads[0].contiguous(), ctx.system), None  # pyright: ignore[reportReturnType]


def smooth_over_mesh(values: Tensor, faces: Tensor, stiffness: float = 19.0) -> Tensor:
    """(I + stiffness L)^-1 values: per-vertex `values` (V, C) smoothed over the mesh, keeping their sum.

    L is the graph Laplacian (degree minus adjacency). `stiffness` 0 gives `values`, infinity their mean over each connected
    part. Differentiable to any order in `values`; the derivative is the same solve. Cost: O(sqrt(stiffness)) products with L.

    >>> from algonet.render import icosphere
    >>> ball = icosphere(1)
    >>> spike = torch.zeros(42, 1).index_fill(0, torch.tensor([7]), 1.0)
    >>> smooth = smooth_over_mesh(spike, ball.faces)
    >>> round(float(smooth.sum()), 4), bool(smooth.max() < 0.2)
    (1.0, True)
    """
    check_spec("smooth_over_mesh", "values", values, "V C")
    tolerance = 1e-12 if values.dtype == torch.float64 else 1e-7
    system = SmoothingSystem(faces, values, float(stiffness), tolerance)
    return _Solve.apply(values.contiguous(), system)  # pyright: ignore[reportReturnType]


def _series(largest: float, powers: int, tolerance: float) -> np.ndarray:
    """(terms, powers): Chebyshev coefficients of 1/x, 1/x^2, ... on [1, largest], as many as the tolerance needs."""
    if largest <= 1:
        return np.ones((1, powers))
    root = math.sqrt(largest)
    # The series of 1/x falls by this ratio from term to term; that of 1/x^2 too, times the term's number
    ratio = (root - 1) / (root + 1)
    terms = max(2, math.ceil(math.log(tolerance / (2 * root)) / math.log(max(ratio, 1e-3))) + 1)
    nodes = 2 * terms
    angles = np.pi * (np.arange(nodes) + 0.5) / nodes
    x = (largest + 1) / 2 + (largest - 1) / 2 * np.cos(angles)
    # Not NumPy's chebinterpolate, whose recurrence loses two digits of a thousand terms
    coefficients = 2 / nodes * np.cos(np.arange(terms)[:, None] * angles) @ x[:, None] ** -(1.0 + np.arange(powers))
    coefficients[0] /= 2
    return coefficients
