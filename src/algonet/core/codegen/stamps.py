"""What machine code depends on beside its own source."""

from __future__ import annotations

from pathlib import Path

from algonet.core.cache import cached


@cached(most=1)
def inlined() -> bytes:
    """The functions that generated kernels inline: an edit of these must not find yesterday's machine code."""
    return b"".join((Path(__file__).parent / name).read_bytes() for name in ("numba_math.py", "triton_math.py"))
