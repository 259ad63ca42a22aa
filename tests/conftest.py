"""Settings of the whole test run."""

from __future__ import annotations

import os
import tempfile

# Set before numba or a generated kernel is loaded: tests must not depend on what a user's cache holds.
os.environ.setdefault("ALGONET_CACHE", os.path.join(tempfile.gettempdir(), f"algonet-tests-{os.getuid()}"))

import hypothesis
import pytest
import torch

hypothesis.settings.register_profile("algonet", deadline=None, max_examples=50, derandomize=True)
hypothesis.settings.load_profile("algonet")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if torch.cuda.is_available():
        return
    skip = pytest.mark.skip(reason="needs a CUDA device")
    for item in items:
        if "gpu" in item.keywords:
            item.add_marker(skip)


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)
