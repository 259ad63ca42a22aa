"""A second call is short: how many Python frames of the package it passes, in how many files."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType

import pytest
import torch

import algonet
from algonet import IFS, SmoothRenderer, smooth
from algonet.render import Camera, icosphere
from algonet.sorting import soft_median, soft_rank, soft_sort, soft_topk
from algonet.while_lang import WhileProgram, load_program

ROOT = str(Path(algonet.__file__).parent)
#: Operation -> most frames, most files.
MOST = {
    "soft_sort": (25, 7),
    "soft_rank": (25, 7),
    "soft_topk": (25, 7),
    "soft_median": (25, 7),
    "WhileProgram": (25, 6),
    "IFS": (35, 8),
    "SmoothRenderer": (50, 9),
    "smooth": (70, 9),
}


def frames(call: Callable[[], object]) -> tuple[int, int]:
    """Frames of the package in a call, and files that they are in."""
    passed: list[str] = []

    def enter(frame: FrameType, event: str, _: object) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(ROOT):
            passed.append(frame.f_code.co_filename)

    sys.setprofile(enter)
    try:
        call()
    finally:
        sys.setprofile(None)
    return len(passed), len(set(passed))


@smooth
def leaky(x):
    if x > 0:
        return x
    return 0.1 * x


def calls() -> dict[str, Callable[[], object]]:
    x = torch.randn(4, 16, requires_grad=True)
    program = WhileProgram(load_program("multiply"))
    system, renderer, mesh = IFS.preset("fern", points=256), SmoothRenderer(32), icosphere(1)
    camera = Camera.look_at((0.0, 0.0, 3.0))
    a = torch.tensor(1.0, requires_grad=True)
    three, four = torch.tensor([3.0], requires_grad=True), torch.tensor([4.0])
    return {
        "soft_sort": lambda: soft_sort(x),
        "soft_rank": lambda: soft_rank(x),
        "soft_topk": lambda: soft_topk(x, 3),
        "soft_median": lambda: soft_median(x),
        "WhileProgram": lambda: program(x1=three, x2=four),
        "IFS": lambda: system(32),
        "SmoothRenderer": lambda: renderer(mesh, camera),
        "smooth": lambda: leaky(a),
    }


@pytest.mark.parametrize("name", MOST)
def test_second_calls_are_short(name):
    call, threads = calls()[name], torch.get_num_threads()
    torch.set_num_threads(1)  # frames of the other threads' work would be counted or not
    try:
        for _ in range(12):
            call()
        passed = frames(call)
    finally:
        torch.set_num_threads(threads)
    assert (passed[0] <= MOST[name][0], passed[1] <= MOST[name][1]) == (True, True), passed
