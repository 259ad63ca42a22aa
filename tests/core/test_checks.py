"""Helpers that every domain checks and widens its tensors by."""

from __future__ import annotations

import pytest
import torch

from algonet.core.checks import broadcast_shapes


@pytest.mark.parametrize(
    "shapes",
    [(), ((),), ((2, 3), (2, 3)), ((3,), (2, 3), ()), ((2, 1), (3,)), ((1,), (4, 3)), ((0, 2), (2,)), ((0,), (1,))],
)
def test_shapes_broadcast_as_torch_does_it(shapes):
    found = broadcast_shapes(*shapes)
    assert isinstance(found, torch.Size)
    assert found == torch.broadcast_shapes(*shapes)


def test_shapes_that_end_alike_do_without_torch(monkeypatch):
    monkeypatch.delattr(torch, "broadcast_shapes")
    assert broadcast_shapes((3,), (2, 3), ()) == (2, 3)
    with pytest.raises(AttributeError):
        broadcast_shapes((2, 1), (3,))


def test_shapes_that_do_not_broadcast_raise():
    with pytest.raises(RuntimeError):
        broadcast_shapes((2,), (3,))
