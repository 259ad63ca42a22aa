"""Settings of the whole test run."""

from __future__ import annotations

import gc
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


def pytest_collection_finish() -> None:
    # Libraries and tests stay: to walk through them in each full collection takes a tenth of the run
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)
