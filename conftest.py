"""Doctests of the package see torch without importing it in each example."""

from __future__ import annotations

import pytest
import torch


@pytest.fixture(autouse=True)
def _doctest_names(doctest_namespace: dict) -> None:
    torch.manual_seed(0)
    doctest_namespace["torch"] = torch
    doctest_namespace["nn"] = torch.nn
