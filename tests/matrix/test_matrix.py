"""The recorded matrix is what the code does: a cell that changes, for better or worse, must be recorded again."""

from __future__ import annotations

import pytest

from matrix.generate import DOCS, LAYER_RECORD, cell, layer_cell, page, recorded
from matrix.layers import LAYER_TRANSFORMS, LAYERS
from matrix.operations import OPERATIONS
from matrix.transforms import TRANSFORMS


@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda operation: operation.case.name)
def test_row_is_as_recorded(operation):
    row = recorded().get(operation.case.name)
    assert row is not None, "run: PYTHONPATH=tests python -m matrix.generate"
    assert {column: cell(operation, column) for column in TRANSFORMS} == row


@pytest.mark.parametrize("layer", LAYERS, ids=lambda layer: layer.name)
def test_row_of_a_layer_is_as_recorded(layer):
    row = recorded(LAYER_RECORD).get(layer.name)
    assert row is not None, "run: PYTHONPATH=tests python -m matrix.generate"
    assert {column: layer_cell(layer, column) for column in LAYER_TRANSFORMS} == row


def test_nothing_fails_without_a_reason():
    rows = [*recorded().items(), *recorded(LAYER_RECORD).items()]
    failing = [(name, column) for name, row in rows for column, text in row.items() if "fails" in text]
    assert not failing


def test_page_shows_the_record():
    assert (DOCS / "transforms.md").read_text() == page(recorded(), recorded(LAYER_RECORD))
