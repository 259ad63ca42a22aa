"""What one smooth run asks for, encoded as a string that can travel through a torch operator."""

from __future__ import annotations

import dataclasses
import functools
import re
from dataclasses import dataclass

from torch import Tensor

from algonet.relax import EXITS, Exit, SmoothTent

from .code import Code, decode

#: Exits by the key that names their formula; families defined elsewhere join when first used.
_FORMS: dict[str, Exit] = {}


def form_of(exit: Exit) -> str:
    """The key of an exit's formula, remembered so that `Request.exit` finds it again."""
    if exit.key not in _FORMS:
        field = exit.softness_field
        _FORMS[exit.key] = exit if field is None else dataclasses.replace(exit, **{field: 1.0})
    return exit.key


def form_named(key: str) -> Exit:
    if key not in _FORMS:
        tent = re.fullmatch(r"SmoothTent(\d+)", key)
        known = {family.__name__: family for family in EXITS}
        if tent is None and key not in known:
            raise ValueError(
                f"while_lang: unknown exit {key!r}; use it once in this process so that its formula is known."
            )
        form_of(SmoothTent(int(tent.group(1))) if tent else known[key]())
    return _FORMS[key]


@dataclass(frozen=True)
class Request:
    """A program with all its settings. `moving` has a character per input, "1" where its gradient is wanted."""

    code: Code
    form: str
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    epsilon: float
    max_iterations: int
    trainable: bool
    per_element: bool
    moving: str

    def exit(self, steepness: Tensor) -> Exit:
        """The exit at a steepness (ignored by families that have none)."""
        form = form_named(self.form)
        return form if form.softness_field is None else dataclasses.replace(form, **{form.softness_field: steepness})

    @property
    def wanted(self) -> tuple[int, ...]:
        """Positions among the inputs whose gradient is wanted."""
        return tuple(i for i, mark in enumerate(self.moving) if mark == "1")


def encode(
    code_text: str,
    form: str,
    inputs: tuple[int, ...],
    outputs: tuple[int, ...],
    limits: tuple[float, int],
    flags: tuple[bool, bool],
    moving: str,
) -> str:
    """The settings string; `flags` are (trainable, per_element)."""
    ins, outs = ",".join(map(str, inputs)), ",".join(map(str, outputs))
    return f"{code_text};{form};{ins};{outs};{limits[0]!r};{limits[1]};{int(flags[0])}{int(flags[1])};{moving}"


@functools.lru_cache(maxsize=512)
def decode_request(settings: str) -> Request:
    """The request that `encode` wrote."""
    text, form, ins, outs, epsilon, cap, flags, moving = settings.split(";")

    def numbers(listed: str) -> tuple[int, ...]:
        return tuple(map(int, listed.split(","))) if listed else ()

    return Request(
        decode(text),
        form,
        numbers(ins),
        numbers(outs),
        float(epsilon),
        int(cap),
        flags[0] == "1",
        flags[1] == "1",
        moving,
    )
