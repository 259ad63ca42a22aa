# Kernels live in folders called numba and triton; without this, pyright would take those for the packages.
from typing import Any

def __getattr__(name: str) -> Any: ...
