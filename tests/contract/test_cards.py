"""Every Triton kernel of the package compiles and links for cards that nobody here has: see `helpers.cards`."""

from __future__ import annotations

from collections import Counter

import pytest

from helpers.cards import CARDS, compiled, declared, is_amd

MAKERS = {
    "NVIDIA": tuple(card for card in CARDS if not is_amd(card)),
    "AMD": tuple(card for card in CARDS if is_amd(card)),
}


@pytest.mark.slow
@pytest.mark.parametrize("maker", MAKERS)
def test_every_kernel_compiles(maker):
    """Each for one of the maker's cards in turn; `python -m helpers.cards` tries all of them."""
    pytest.importorskip("triton")
    names, *lines = compiled(MAKERS[maker])
    assert Counter(name.rpartition(".")[2] for name in names.split()) == declared(), "a kernel is never called"
    refused = [line for line in lines if " | compiled | " not in line]
    assert not refused, "\n".join(refused)
    assert len(lines) == sum(declared().values())
