"""The synthesizer under the contract that all operations are under: small rates, few harmonics, every derivative."""

from __future__ import annotations

import pytest
import torch

from algonet.relax import Logistic
from algonet.speech import Inventory, Voice, mel_envelope, mel_spectrogram, synthesize
from helpers.contract import CHECKS, Case, normal

INVENTORY = Inventory.of("a s t")
WHITE = torch.randn(4, 21, 2, generator=torch.Generator().manual_seed(0))
#: Two phonemes of about 15 ms at 2 kHz: 60 samples hold all of them
OPTIONS = {"sample_rate": 2000, "relax": Logistic(300.0), "voice": Voice(0.3, 1.0, 0.2, 0.5)}


def _inventory(like):
    return Inventory(
        INVENTORY.names,
        *(t.to(like) for t in (INVENTORY.formants, INVENTORY.bandwidths, INVENTORY.gains, INVENTORY.noise)),
    )


def _utterances(batch, dtype, generator):
    def draw(low, high, *shape):
        return (low + (high - low) * torch.rand(batch, *shape, generator=generator, dtype=torch.float64)).to(dtype)

    return draw(0, 1, 2, 3).softmax(-1), draw(0.01, 0.02, 2), draw(100, 180, 2), draw(0.5, 1.5, 2)


def _waveform(*score):
    white = WHITE.to(score[0])
    return synthesize(*score, inventory=_inventory(score[0]), white=white, length=60, harmonics=3, **OPTIONS)


def _envelope(*score):
    return mel_envelope(*score, inventory=_inventory(score[0]), frames=4, hop=20, bands=5, **OPTIONS)


def _tract(formants, bandwidths, gains, noise):
    """As functions of the inventory."""
    score = [t.to(formants) for t in _utterances(1, torch.float64, torch.Generator().manual_seed(3))]
    rows = [Inventory(INVENTORY.names, *row) for row in zip(formants, bandwidths, gains, noise, strict=True)]
    return torch.cat([
        synthesize(*score, inventory=row, white=WHITE.to(formants), length=60, harmonics=3, **OPTIONS) for row in rows
    ])  # fmt: skip


def _inventories(batch, dtype, generator):
    change = 1 + 0.1 * torch.rand(batch, 4, generator=generator, dtype=torch.float64)
    tables = (INVENTORY.formants, INVENTORY.bandwidths, INVENTORY.gains, INVENTORY.noise)
    return tuple((t.double() * c[:, None, None]).to(dtype) for t, c in zip(tables, change.unbind(1), strict=True))


EXTREMES = [
    tuple(scale * t for t in _utterances(2, torch.float32, torch.Generator().manual_seed(1)))
    for scale in (0.0, 1e-30, -1.0, 1e4, 1e12)
]
CASES = [
    # In half precision the phase of the third harmonic is what is rounded: measured 3e-3 of the loudest sample
    Case("synthesize", _waveform, _utterances, extremes=EXTREMES, factor=4.0),
    Case("mel_envelope", _envelope, _utterances, extremes=EXTREMES, factor=2.0),
    Case("mel_spectrogram", lambda x: mel_spectrogram(x, sample_rate=2000, hop=40, bands=3), normal(60), factor=4.0),
]


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_contract(case, check):
    check(case)


def test_derivatives_by_the_inventory():
    tables = [t.requires_grad_() for t in _inventories(1, torch.float64, torch.Generator().manual_seed(2))]
    assert torch.autograd.gradcheck(_tract, tables)
    some = [tables[0], tables[1], tables[2].detach(), tables[3].detach()]
    assert torch.autograd.gradgradcheck(lambda *t: _tract(*t)[:, ::7], some)


def test_derivatives_are_continuous_along():
    """Through a duration of zero, silence and another phoneme: steps of derivatives shrink with the distance of points."""
    weights = torch.randn(60, generator=torch.Generator().manual_seed(5), dtype=torch.float64)

    def steps(count):
        t = ((torch.arange(count, dtype=torch.float64) + 0.5) * 2 / count - 1).requires_grad_()
        one = torch.ones_like(t)
        phonemes = torch.stack([torch.stack([0.3 + 0.2 * t, 0.7 - 0.2 * t, 0 * t], -1)] * 2, -2)
        pairs = ([0.01 * t, 0.015 * one], [140 + 20 * t, 120 * one], [t, one])
        y = _waveform(phonemes, *(torch.stack(pair, -1) for pair in pairs)) @ weights
        found = []
        for _ in range(3):
            (y,) = torch.autograd.grad(y.sum(), t, create_graph=True)
            found.append((y[1:] - y[:-1]).detach().abs().max())
        return torch.stack(found)

    assert (steps(800) < 0.75 * steps(400)).all()
