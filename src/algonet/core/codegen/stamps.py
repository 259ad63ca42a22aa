"""What machine code depends on beside its own source."""

from __future__ import annotations

from pathlib import Path

from algonet.core.cache import cached

_FILES = ("numba_math.py", "numba_pointers.py", "triton_math.py")


@cached(most=1)
def inlined() -> bytes:
    """The functions that generated kernels inline: an edit of these must not find yesterday's machine code."""
    return b"".join((Path(__file__).parent / name).read_bytes() for name in _FILES)
