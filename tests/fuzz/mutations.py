"""Strategies for broken files: noise, and valid ones damaged in a few places."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import strategies as st

#: What tends to break readers of numbers.
NUMBERS = (
    b"0", b"-1", b"1", b"3", b"255", b"256", b"65536", b"2147483648", b"4294967295", b"-9223372036854775809",
    b"99999999999999999999", b"1" + b"0" * 400, b"nan", b"inf", b"-inf", b"1e400", b"1e-400", b"0x10", b"1/0", b"", b"NULL",
    b"true", b"\xd9\xa3",
)  # fmt: skip
NOISE = st.one_of(st.binary(max_size=200), st.text(max_size=100).map(lambda text: text.encode("utf-8", "replace")))


@st.composite
def damaged(draw: st.DrawFn, files: Sequence[bytes], words: Sequence[bytes] = NUMBERS) -> bytes:
    """One of `files` with up to four cuts, flipped bytes, insertions, repetitions or exchanged words."""
    data = draw(st.sampled_from(list(files)))
    for _ in range(draw(st.integers(0, 4))):
        at = draw(st.integers(0, max(0, len(data) - 1)))
        length = draw(st.sampled_from([1, 2, 4, 8, 40]))
        kind = draw(st.sampled_from(["truncate", "cut", "flip", "insert", "noise", "repeat", "word"]))
        head, middle, tail = data[:at], data[at : at + length], data[at + length :]
        if kind == "truncate":
            data = head
        elif kind == "cut":
            data = head + tail
        elif kind == "flip":
            data = head + bytes(b ^ (1 << draw(st.integers(0, 7))) for b in middle) + tail
        elif kind == "insert":
            data = head + draw(st.sampled_from(list(words))) + middle + tail
        elif kind == "noise":
            data = head + draw(st.binary(max_size=8)) + tail
        elif kind == "repeat":
            data = head + middle * draw(st.sampled_from([2, 3, 50])) + tail
        else:
            data = _exchanged(data, at, draw(st.sampled_from(list(words))))
    return data


def _exchanged(data: bytes, at: int, word: bytes) -> bytes:
    """`data` with the run of letters and digits around `at` replaced."""

    def inside(i: int) -> bool:
        return 0 <= i < len(data) and (chr(data[i]).isalnum() or data[i] in b".-+")

    start = end = at
    while inside(start - 1):
        start -= 1
    while inside(end):
        end += 1
    return data[:start] + word + data[end:]
