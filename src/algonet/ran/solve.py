"""A backward AlgoNet around anybody's algorithm: parts from the shapes of what goes in and out."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import torch
from torch import Tensor, nn

from .config import METHODS, LossWeights, TrainConfig
from .data import CachedItems
from .model import RAN, Direct, Prior, Truth
from .networks import Encoder, PairDiscriminator, Repaint, UNet, near_zero
from .trainer import History, RANTrainer

#: Rows that a trace is repeated over, so that networks for pictures take it.
ROWS = 8


class Box(nn.Module):
    """Parameters between `low` and `high`, numbers or tensors of the parameters' shape: what a reconstructor may answer, and
    the prior that samples are drawn from, uniformly.

    >>> Box([0.0, -1.0], [1.0, 1.0]).draw(5).shape
    torch.Size([5, 2])
    """

    low: Tensor
    high: Tensor

    def __init__(self, low: Any, high: Any):
        super().__init__()
        low, high = torch.broadcast_tensors(
            torch.as_tensor(low, dtype=torch.float32), torch.as_tensor(high, dtype=torch.float32)
        )
        if not bool((low < high).all() & low.isfinite().all() & high.isfinite().all()):
            raise ValueError(f"Box: `low` must be below `high`, both finite, got {low.tolist()} and {high.tolist()}.")
        self.register_buffer("low", low.clone())
        self.register_buffer("high", high.clone())

    def forward(self, place: Tensor) -> Tensor:
        """Places (B, ...) in [0, 1] as parameters."""
        return self.low + (self.high - self.low) * place

    def draw(self, count: int) -> Tensor:
        return self(torch.rand(count, *self.low.shape, device=self.low.device))


class BoxReconstructor(nn.Module):
    """Pictures to parameters in a box, at first near its middle."""

    def __init__(self, encoder: nn.Module, box: Box, width: int):
        super().__init__()
        self.encoder, self.box = encoder, box
        self.head = near_zero(nn.Linear(width, box.low.numel()))

    def forward(self, pictures: Tensor) -> Tensor:
        return self.box(
            torch.sigmoid(self.head(self.encoder(pictures)).float()).unflatten(-1, (*self.box.low.shape,) or (1,))
        )


class _Evened(nn.Module):
    """Pictures without the mean of each channel, of contrast one: an input and a repainted sample differ in contrast, and what
    is learned of one must hold for the other."""

    def forward(self, pictures: Tensor) -> Tensor:
        centred = pictures - pictures.mean((2, 3), keepdim=True)
        least = 1e-5 * pictures.abs().mean((1, 2, 3), keepdim=True) + 1e-8  # rounding in a flat picture is no contrast
        return centred / (centred.square().mean((1, 2, 3), keepdim=True) + least.square()).sqrt()


class _Pictures(nn.Module):
    """The user's inverse, its traces as pictures, its values brought into [0, 1], where translators end; the tensors that it
    makes are made where the parameters are."""

    def __init__(self, inverse: Callable[[Tensor], Tensor]):
        super().__init__()
        self.inverse, self.low, self.range = inverse, 0.0, 1.0

    def forward(self, parameters: Tensor) -> Tensor:
        with parameters.device:
            made = _as_pictures(self.inverse(parameters))
        return (made - self.low) / self.range if isinstance(made, Tensor) else made

    @torch.no_grad()
    def bring_into_range(self, parameters: Tensor) -> None:
        """Take the values made of these parameters for all there are; what lies in [0, 1] already stays as it is."""
        low, high = self(parameters).aminmax()
        if low < 0 or high > 1:
            self.low, self.range = float(low), float(high - low) or 1.0


@dataclass(frozen=True, eq=False)
class Solution:
    """What `solve_inverse` found: `reconstruct(picture)` answers one input or a batch of them."""

    trainer: RANTrainer

    @torch.no_grad()
    def reconstruct(self, picture: Tensor) -> Tensor:
        model = self.trainer.model
        one = picture.dim() == self.trainer.description["dims"] - 1
        found = model.reconstruct(_as_pictures(picture[None] if one else picture).to(next(model.parameters()).device))
        return found[0] if one else found

    @property
    def history(self) -> History:
        return self.trainer.history

    @property
    def report(self) -> list[str]:
        """What in the training is idle or collapsed, and what usually helps; nothing if all is well."""
        return self.trainer.report

    def save(self, folder: str | os.PathLike[str]) -> Path | None:
        """Write a checkpoint; `solve_inverse` with this `folder` and `resume` goes on from it, or only reads it back."""
        self.trainer.folder = Path(folder)
        return self.trainer.save()


def solve_inverse(
    inverse: Callable[[Tensor], Tensor],
    pictures: Tensor,
    *,
    parameters: Box,
    steps: int = 2000,
    method: str = "ran",
    truth: Tensor | None = None,
    reconstructor: nn.Module | None = None,
    a2b: nn.Module | None = None,
    b2a: nn.Module | None = None,
    discriminator: nn.Module | None = None,
    settings: TrainConfig | None = None,
    folder: str | os.PathLike[str] | None = None,
    resume: bool = False,
    seed: int = 0,
    progress: bool = False,
) -> Solution:
    """Find the parameters of each of `pictures` (N, C, H, W), or traces (N, L) or (N, C, L), through a smooth `inverse`:
    parameters (B, ...) -> (B, C', H, W), or traces as long. The pictures may look unlike the inverse's.

    Networks come from the shapes and can be given instead. `method`: "ran", with a prior over `parameters`; "direct" without
    translators; "supervised" on the `truth` (N, ...) of all pictures; "weak" on that (n, ...) of the first n. `settings`, if
    given, are those of the trainer, with their own steps. Checkpoints go to `folder`, from where `resume` goes on.

    >>> def bump(p): return torch.exp(-((torch.linspace(-1, 1, 16) - p) * 4) ** 2)
    >>> seen = 1 - 0.5 * bump(torch.rand(32, 1) - 0.5)
    >>> found = solve_inverse(bump, seen, parameters=Box([-0.8], [0.8]), steps=2)
    >>> found.reconstruct(seen[0]).shape
    torch.Size([1])
    """
    a = _as_pictures(pictures.detach().float().cpu()) if pictures.dim() in (2, 3, 4) and len(pictures) else None
    if a is None:
        _refuse(f"wanted pictures (N, C, H, W) or traces (N, L) or (N, C, L), got {tuple(pictures.shape)}.")
    smooth = _Pictures(inverse)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        channels = _checked(smooth, parameters, pictures, a)
        smooth.bring_into_range(parameters.draw(64))
    items = CachedItems([{"a": picture} for picture in a])
    options: dict[str, Any] = {"weights": LossWeights(adversarial=0.1, l1=10.0)}
    if method in ("supervised", "weak"):
        options["truth"] = _labelled(items, truth, parameters, method)
    elif method not in METHODS:
        _refuse(f"`method` must be one of {', '.join(METHODS)}, got {method!r}.")
    halvings = next((k for k in (3, 2, 1) if not (a.shape[2] % 2**k or a.shape[3] % 2**k)), 0)
    if not halvings:
        _refuse(f"pictures of {a.shape[2]} x {a.shape[3]} cannot be halved; take even sizes.")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        if reconstructor is None:
            encoder = Encoder(a.shape[1], (a.shape[2], a.shape[3]), width=128, levels=halvings)
            encoder = nn.Sequential(_Evened(), encoder) if method == "ran" else encoder  # labels may tell of brightness
            reconstructor = BoxReconstructor(encoder, parameters, 128)
        if method in ("direct", "supervised"):
            model: Any = Direct(reconstructor, smooth, **options)
        else:
            model = RAN(
                reconstructor, smooth, a2b or nn.Sequential(_Evened(), UNet(a.shape[1], channels, levels=halvings)),
                b2a or Repaint(channels, a.shape[1]),
                discriminator or PairDiscriminator(a.shape[1], channels, levels=halvings, patches=True),
                separately=False, prior=Prior(parameters.draw, 10.0, 3.0), **options,
            )  # fmt: skip
    settings = settings or TrainConfig(
        steps=steps, batch=min(16, len(a)), wait=steps // 10, warmup=min(50, steps // 10), tensorboard=False,
        softness=(), reconstructor_rate=1.0, pictures_every=max(1, steps // 10),
    )  # fmt: skip
    trainer = RANTrainer(
        model, items, settings, folder or tempfile.mkdtemp(prefix="algonet-"), seed=seed,
        description={"dims": pictures.dim()}, progress=progress,
    )  # fmt: skip
    trainer.fit(resume=resume)
    return Solution(trainer)


def _refuse(reason: str) -> NoReturn:
    raise ValueError(f"solve_inverse: {reason}")


def _checked(smooth: _Pictures, parameters: Box, pictures: Tensor, a: Tensor) -> int:
    """The channels of the inverse's pictures, after a trial with two drawn parameters."""
    drawn = parameters.draw(2).requires_grad_()
    b = smooth(drawn)
    wanted = ", ".join(map(str, pictures.shape[2:] or pictures.shape[1:]))
    if not isinstance(b, Tensor) or b.dim() != 4 or (len(b), *b.shape[2:]) != (2, *a.shape[2:]):
        got = smooth.inverse(drawn)
        _refuse(
            f"of parameters {tuple(drawn.shape)} the inverse must make pictures of the inputs' size, (2, C, {wanted}), got "
            f"{tuple(got.shape) if isinstance(got, Tensor) else type(got).__name__}."
        )
    if not b.requires_grad:
        _refuse("the inverse has no derivative; it must be a smooth function of torch tensors.")
    return b.shape[1]


def _labelled(items: CachedItems, truth: Tensor | None, parameters: Box, method: str) -> Truth:
    """Give the first items their truth."""
    shape, count = parameters.low.shape, len(items) if method == "supervised" else None
    wrong = truth is None or truth.shape[1:] != shape or not 0 < len(truth) <= len(items)
    if truth is None or wrong or (count and len(truth) != count):
        _refuse(
            f"method {method!r} needs `truth` ({count or 'n'}, {', '.join(map(str, shape))}), got "
            f"{None if truth is None else tuple(truth.shape)}."
        )
    for i, entry in enumerate(truth.detach().float().cpu()):
        items[i]["truth"] = entry
    if method == "weak":
        items.label(len(truth) / len(items))
    width = parameters.high - parameters.low
    return Truth(("truth",), lambda found, b: ((found - b["truth"]).abs() / width.to(found)).flatten(1).mean(1))


def _as_pictures(x: Any) -> Any:
    """Pictures as they are; traces (B, L) and (B, C, L) as pictures of equal rows."""
    if isinstance(x, Tensor) and x.dim() == 2:
        x = x[:, None]
    return x[:, :, None].expand(-1, -1, ROWS, -1) if isinstance(x, Tensor) and x.dim() == 3 else x
