"""What rooms are made of: work that follows the newest wish, a surface to drag on, the code, one line for what went wrong."""

from __future__ import annotations

import asyncio
import copy
import os
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from nicegui import background_tasks, ui

#: Work of all visitors; each has at most one piece in it at a time.
_POOL = ThreadPoolExecutor(max(2, os.cpu_count() or 2), thread_name_prefix="play")
#: Between two events of one drag, in seconds.
THROTTLE = 0.05
#: A picture while dragging should take no longer than this; sizes adapt to it.
FRAME = 0.09
#: After so many seconds without a wish the picture is drawn once more, as large as it can be.
REST = 0.25


async def off_loop(function: Callable[..., Any], *args: Any) -> Any:
    """`function(*args)` in a thread, so that other visitors are served meanwhile."""
    return await asyncio.get_running_loop().run_in_executor(_POOL, function, *args)


def one_line(error: BaseException | Warning | str) -> str:
    """What went wrong, for a line on the page."""
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= 300 else text[:297] + "..."


class Latest:
    """Follows a wish: `work(wish)` runs in a thread, and its result is shown with the wish that it answers. Wishes made
    meanwhile replace each other, so none queue up. Nothing of a wish is changed in place.

    With a `size`, pictures are as large as the machine draws in time while wishes come, and once as large as can be when
    they rest: `wish.size` is set accordingly.
    """

    def __init__(
        self,
        wish: Any,
        work: Callable[[Any], Any],
        show: Callable[[Any, Any], None],
        problem: Problem,
        size: Size | None = None,
    ):
        self.wish, self._work, self._show, self._problem, self._size = wish, work, show, problem, size
        self._next: Any = None
        self._running = False

    def again(self, **changes: Any) -> None:
        """Wish for something else."""
        for name, value in changes.items():
            setattr(self.wish, name, value)
        self._next = copy.copy(self.wish)
        if not self._running:
            self._running = True
            background_tasks.create(self._run(), name="play")

    async def _run(self) -> None:
        try:
            while self._next is not None:
                wish, self._next = self._next, None
                if self._size is not None:
                    wish.size = self._size.now
                took = await self._once(wish)
                if self._size is not None and took is not None:
                    self._size.adapt(took)
                    await asyncio.sleep(0 if self._next is not None else REST)
                    if self._next is None and wish.size < self._size.most:
                        wish.size = self._size.most
                        await self._once(wish)
        finally:
            self._running = False

    async def _once(self, wish: Any) -> float | None:
        """Do it and show it; how long it took, or None where it failed."""
        start = time.perf_counter()
        loop = asyncio.get_running_loop()
        patience = [loop.call_later(0.15, self._problem.stale), loop.call_later(0.8, self._problem.wait)]
        try:
            result = await off_loop(self._work, wish)
        except Exception as error:
            self._problem.say(one_line(error))
            return None
        finally:
            for timer in patience:
                timer.cancel()
        self._problem.say("")
        self._problem.first = False
        self._show(result, wish)
        return time.perf_counter() - start


class Fit:
    """A button that begins a fit and ends it: what `begin()` yields is shown as it comes, until it ends, is stopped, or a
    newer fit begins."""

    def __init__(self, name: str, begin: Callable[[], Iterator[tuple]], show: Callable[..., None], problem: Problem):
        self._name, self._begin, self._show, self._problem, self._turn = name, begin, show, problem, 0
        self._button = ui.button(name, on_click=self._click).props("no-caps unelevated")

    def stop(self) -> None:
        self._turn += 1
        self._button.set_text(self._name)

    async def _click(self) -> None:
        running = self._button.text == "stop"
        self.stop()
        if running:
            return
        turn = self._turn
        self._button.set_text("stop")
        try:
            steps = self._begin()
            turn = self._turn
            while (found := await off_loop(next, steps, None)) is not None:
                if turn != self._turn or self._button.client.is_deleted:
                    return
                self._show(*found)
        except Exception as error:
            self._problem.say(one_line(error))
        if turn == self._turn:
            self.stop()


class Size:
    """The side of a picture in pixels, as large as the machine draws in time."""

    def __init__(self, most: int = 360, least: int = 128):
        self.most, self.least, self.now = most, least, 256

    def adapt(self, took: float) -> None:
        if took > FRAME:
            self.now = max(self.least, int(self.now * 0.85))
        elif took < FRAME / 2:
            self.now = min(self.most, int(self.now * 1.1) + 1)


class Problem:
    """One line on the page that says what is wrong, or nothing. What was `read` is grey while a new value is computed."""

    def __init__(self, read: Any = None) -> None:
        #: Whether nothing has been shown yet.
        self._read, self.first = read, True
        self._label = ui.label("").classes("problem").mark("problem")
        self.say("")

    def say(self, text: str) -> None:
        self._label.classes(remove="waiting")
        self.stale(bool(text))
        self._label.set_text(text)
        self._label.set_visibility(bool(text))

    def stale(self, old: bool = True) -> None:
        """Whether the value on the page belongs to an earlier wish."""
        if self._read is not None:
            self._read.classes(**{"add" if old else "remove": "stale"})

    def wait(self) -> None:
        """Say that a picture takes a while."""
        self.say(
            "Computing. The first picture takes longest: kernels are compiled, once." if self.first else "Computing."
        )
        self._label.classes(add="waiting")


def canvas(drag: Callable[[str, float, float], None], *, alt: str, size: tuple[int, int] = (400, 400)) -> Any:
    """A picture with SVG on top that answers to mouse and finger: `drag("down" | "move" | "up", x, y)`, x and y in [0, 1]."""
    blank = f"data:image/svg+xml,%3Csvg xmlns='http://www.w3.org/2000/svg' width='{size[0]}' height='{size[1]}'/%3E"
    image = ui.interactive_image(blank, sanitize=False).classes("stage").props(f'alt="{alt}" role=img')
    place = (
        "(e) => { const r = e.currentTarget.getBoundingClientRect(); %s"
        "emit('%s', (e.clientX - r.x) / r.width, (e.clientY - r.y) / r.height) }"
    )
    hold = "e.currentTarget.setPointerCapture?.(e.pointerId); e.preventDefault(); "

    def handle(event: Any) -> None:
        kind, x, y = event.args
        drag(str(kind), min(max(float(x), 0.0), 1.0), min(max(float(y), 0.0), 1.0))

    image.on("pointerdown", handle, js_handler=place % (hold, "down"))
    image.on("pointermove", handle, js_handler=place % ("if (!e.buttons) return; ", "move"), throttle=THROTTLE)
    image.on("pointerup", handle, js_handler=place % ("", "up"))
    return image


def turning(latest: Callable[[], Latest], lowest: float) -> Callable[[str, float, float], None]:
    """What dragging does in rooms that show a solid: it turns the wish's `azimuth` and `height`, angles in radians."""
    held: list[float] = []

    def drag(kind: str, x: float, y: float) -> None:
        if kind != "down" and held:
            wish = latest().wish
            height = min(max(wish.height + 3 * (y - held[1]), lowest), 1.4)
            latest().again(azimuth=wish.azimuth - 4 * (x - held[0]), height=height)
        held[:] = [] if kind == "up" else [x, y]

    return drag


def slider(
    name: str,
    low: float,
    high: float,
    value: float,
    change: Callable[[float], None],
    *,
    step: float = 0.01,
    shown: Callable[[float], str] = "{:.3g}".format,
) -> Any:
    """A named slider with its value beside it; answers while it moves."""
    with ui.row().classes("slider no-wrap items-center w-full"):
        ui.label(name).classes("name")
        moved = ui.slider(min=low, max=high, step=step, value=value).props(f'aria-label="{name}"').classes("grow")
        ui.label().classes("value").bind_text_from(moved, "value", lambda v: shown(float(v)))
    moved.on("update:model-value", lambda event: change(float(event.args)), throttle=THROTTLE)
    return moved


def choice(name: str, options: list[str] | dict[str, str], value: str, change: Callable[[str], object]) -> Any:
    return (
        ui.select(options, value=value, label=name, on_change=lambda event: change(event.value))
        .props("dense outlined options-dense")
        .classes("choice")
    )


class Code:
    """The few lines that do the same, kept up to date, below the room."""

    def __init__(self) -> None:
        with ui.element("div").classes("card wide"):
            ui.label("The same in Python").classes("small-heading")
            self._shown = ui.code("", language="python").classes("w-full code")

    def show(self, text: str) -> None:
        self._shown.set_content(text.strip())


def image(source: str) -> str:
    """A picture as HTML, for the tiles of the first page."""
    return (
        f'<img src="{source}" alt="" style="width: 100%; height: 100%; object-fit: contain; mix-blend-mode: lighten">'
    )


def svg(content: str, width: int, height: int) -> str:
    """A drawing as HTML, for the tiles of the first page."""
    return f'<svg viewBox="0 0 {width} {height}" width="100%" height="100%" aria-hidden="true">{content}</svg>'
