"""Caches that are bounded in bytes, and that keep nothing a mode has made."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

import torch
from torch import Tensor

V = TypeVar("V")


class ByteCache(Generic[V]):
    """key -> value, the least recently used forgotten beyond `most` bytes.

    `tensors(value)` are the tensors a value is made of: what it weighs, and what tells whether it may be kept. Values are
    made outside inference mode, so that training may save them; those of other modes (fake tensors, a default device
    that is not the one asked for) are returned and not kept.
    """

    def __init__(self, most: int, tensors: Callable[[V], tuple[Tensor, ...]]):
        self.most, self.bytes = most, 0
        self._tensors = tensors
        self._values: OrderedDict[Hashable, tuple[V, int]] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, key: Hashable, device: torch.device, make: Callable[[], V]) -> V:
        found = self._values.get(key)
        if found is not None:
            with self._lock:
                if key in self._values:
                    self._values.move_to_end(key)
            return found[0]
        with torch.inference_mode(False):
            value = make()
        tensors = self._tensors(value)
        if any(type(t) is not Tensor or t.is_inference() or t.device != device for t in tensors):
            return value
        weight = sum(t.numel() * t.element_size() for t in tensors)
        with self._lock:
            if key not in self._values:
                self._values[key] = value, weight
                self.bytes += weight
            while self.bytes > self.most and len(self._values) > 1:
                self.bytes -= self._values.popitem(last=False)[1][1]
        return value

    def clear(self) -> None:
        with self._lock:
            self._values.clear()
            self.bytes = 0

    def __len__(self) -> int:
        return len(self._values)
