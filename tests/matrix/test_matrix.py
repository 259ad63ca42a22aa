"""The recorded matrix is what the code does: a cell that changes, for better or worse, must be recorded again."""

from __future__ import annotations

import pytest

from matrix.generate import DOCS, cell, page, recorded
from matrix.operations import OPERATIONS
from matrix.transforms import TRANSFORMS


@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda operation: operation.case.name)
def test_row_is_as_recorded(operation):
    row = recorded().get(operation.case.name)
    assert row is not None, "run: PYTHONPATH=tests python -m matrix.generate"
    assert {column: cell(operation, column) for column in TRANSFORMS} == row


def test_nothing_fails_without_a_reason():
    failing = [(name, column) for name, row in recorded().items() for column, text in row.items() if "fails" in text]
    assert not failing


def test_page_shows_the_record():
    assert (DOCS / "transforms.md").read_text() == page(recorded())
