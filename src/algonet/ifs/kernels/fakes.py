"""What both kernel backends share: the reference in operator form, and the shapes of the results."""

from __future__ import annotations

from torch import Tensor

from .. import reference
from .settings import ChaosSettings, SplatSettings


def splat_reference(tensors: list[Tensor], settings: str) -> list[Tensor]:
    chosen = SplatSettings.decode(settings)
    points, sigma, weights, features = tensors
    return [reference.splat(points, sigma, weights, features, (chosen.height, chosen.width), chosen.logs)]


def splat_fake(tensors: list[Tensor], settings: str) -> tuple[list[Tensor], list[Tensor]]:
    chosen = SplatSettings.decode(settings)
    points, _, _, features = tensors
    return [points.new_empty(*points.shape[:-2], 1 + features.shape[-1], chosen.height, chosen.width)], []


def chaos_reference(tensors: list[Tensor], settings: str) -> list[Tensor]:
    chosen = ChaosSettings.decode(settings)
    parameters, choices, start = tensors
    return [reference.chaos(parameters, choices, start, chosen.burn_in, chosen.horizon)]


def chaos_fake(tensors: list[Tensor], settings: str) -> tuple[list[Tensor], list[Tensor]]:
    parameters, choices, start = tensors
    burn_in = ChaosSettings.decode(settings).burn_in
    *batch, chains, steps = choices.shape
    kept = parameters.new_empty(*batch, steps + 1, chains, start.shape[-1])
    return [parameters.new_empty(*batch, chains, steps - burn_in, start.shape[-1])], [kept]
