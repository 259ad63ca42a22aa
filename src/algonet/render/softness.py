"""What a module remembers of its softness, so that calls need not wait for a device nor make tensors anew."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from algonet.core import tracing


def keepable(*tensors: Tensor) -> bool:
    """Whether what is made of these may be kept for later calls: none of them is learned, and no transform or graph is on."""
    if not tracing.plain() or (tensors and tracing.capturing(tensors[0].device)):
        return False
    return True not in [t.requires_grad or t.is_inference() for t in tensors]


class SoftnessMemory:
    """A softness as a number, and what was last made of it; each as long as the tensors are those that it came from, unchanged.

    A copy starts empty.
    """

    def __init__(self) -> None:
        self._number: tuple[Tensor, int, float] | None = None
        self._last: tuple[tuple, list[Tensor], Tensor] | None = None

    def remember(self, softness: Tensor, value: float | None) -> None:
        """Remember that this number is now in the tensor; `None`: it is not known."""
        fixed = value is not None and not softness.requires_grad and not softness.is_inference()
        self._number = (softness, softness._version, value) if fixed and value is not None else None

    def number(self, softness: Tensor) -> float | None:
        """What is in the tensor, if that is known without a look; a compiled graph does not know, and so follows changes."""
        last = self._number
        if last is None or last[0] is not softness or tracing.compiling():
            return None
        return last[2] if last[1] == softness._version else None

    def get(self, sources: tuple[Any, ...], key: tuple, make: Callable[[], Tensor]) -> Tensor:
        """What `make` makes of the sources (tensors and numbers), again only when one of them or the key has changed."""
        tensors = [t for t in sources if isinstance(t, Tensor)]
        if not keepable(*tensors):
            return make()
        key = (*key, *[t._version if isinstance(t, Tensor) else t for t in sources])
        last = self._last
        if last is None or last[0] != key or any(a is not b for a, b in zip(last[1], tensors, strict=True)):
            with tracing.outside_modes():
                last = self._last = (key, tensors, make())
        return last[2]

    def __deepcopy__(self, memo: dict) -> SoftnessMemory:
        return SoftnessMemory()

    def __reduce__(self) -> Any:
        return SoftnessMemory, ()
