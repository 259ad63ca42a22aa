"""The server: pages, style, and what it refuses."""

from __future__ import annotations

import contextlib
import importlib
import sys
from importlib import resources
from typing import Any

import torch
from nicegui import app, background_tasks, ui

from .rooms import ROOMS
from .stage import off_loop

#: No request is larger, whatever the browser was told: the largest is a mesh of `rooms.renderer.LARGEST` and its frame.
MOST_BYTES = 4_000_000
INTRO = (
    "Five rooms to touch what algonet does: algorithms whose decisions have gradients. Everything is computed on this machine, "
    "while you drag. Each room shows the lines of Python that do the same."
)


class Limit:
    """ASGI middleware: requests to other hosts' names, and bodies that are too large, are refused."""

    def __init__(self, inner: Any, names: tuple[str, ...]):
        self.inner, self.names = inner, names

    async def __call__(self, scope: dict, receive: Any, send: Any) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self.inner(scope, receive, send)
            return
        headers = dict(scope["headers"])
        host = headers.get(b"host", b"").decode("latin-1")
        if self.names and (host.rpartition(":")[0] or host).strip("[]") not in self.names:
            # A page elsewhere whose name was made to point here must not drive this server
            await _refuse(scope, send, 403, "algonet play: open it as http://127.0.0.1")
            return
        if int(headers.get(b"content-length", b"0") or 0) > MOST_BYTES:
            await _refuse(scope, send, 413, f"algonet play: at most {MOST_BYTES} bytes")
            return
        taken = 0

        async def counted() -> Any:
            nonlocal taken
            message = await receive()
            taken += len(message.get("body", b"")) if scope["type"] == "http" else 0
            if taken > MOST_BYTES:
                return {"type": "http.disconnect"}
            return message

        await self.inner(scope, counted, send)


async def _refuse(scope: dict, send: Any, status: int, text: str) -> None:
    if scope["type"] == "websocket":
        await send({"type": "websocket.close", "code": 1008})
        return
    await send({"type": "http.response.start", "status": status, "headers": [(b"content-type", b"text/plain")]})
    await send({"type": "http.response.body", "body": text.encode()})


def _frame(current: str) -> None:
    """What every page has: style, heading, the way to the other rooms."""
    style = resources.files("algonet.apps.play").joinpath("style.css").read_text(encoding="utf-8")
    ui.add_css(style)
    ui.dark_mode(None)
    with ui.header().classes("bar items-center no-wrap"):
        ui.link("algonet", "/").classes("brand")
        with ui.row().classes("rooms no-wrap"):
            for name, room in ROOMS.items():
                ui.link(room.title, f"/{name}").classes("room" + (" here" if name == current else ""))


def _page(name: str) -> None:
    room = ROOMS[name]

    @ui.page(f"/{name}", title=f"{room.title} - algonet play")
    def page() -> None:
        _frame(name)
        with ui.column().classes("content"):
            ui.label(room.heading).classes("heading")
            ui.label(room.intro).classes("intro")
            importlib.import_module(f"algonet.apps.play.rooms.{room.module}").build()


@ui.page("/", title="algonet play")
def _home() -> None:
    _frame("")
    with ui.column().classes("content"):
        ui.label("Algorithms you can turn by hand").classes("heading")
        ui.label(INTRO).classes("intro")
        with ui.element("div").classes("tiles"):
            for name, room in ROOMS.items():
                with ui.link(target=f"/{name}").classes("tile"):
                    picture = ui.html("", sanitize=False).classes("thumb")
                    background_tasks.create(_thumbnail(picture, room.module), name="thumbnail")
                    ui.label(room.title).classes("tile-title")
                    ui.label(room.heading).classes("tile-text")


#: What each room's tile shows, drawn once by the room itself.
_drawn: dict[str, str] = {}


async def _thumbnail(picture: Any, module: str) -> None:
    """Show the room's first picture, small."""
    if module not in _drawn:
        room = importlib.import_module(f"algonet.apps.play.rooms.{module}")
        _drawn[module] = await off_loop(room.thumbnail)
    if not picture.client.is_deleted:
        picture.set_content(_drawn[module])


def serve(host: str, port: int, show: bool) -> None:
    """Serve until interrupted."""
    torch.set_num_threads(1)  # pictures are small, and visitors should not wait for each other's threads
    for name in ROOMS:
        _page(name)
    local = host in ("127.0.0.1", "localhost", "::1")
    importlib.import_module("algonet.apps.play.rooms.smooth_programs").EDITABLE[0] = local
    app.add_middleware(Limit, names=("127.0.0.1", "localhost", "::1") if local else ())
    print(f"algonet play: http://{'127.0.0.1' if local else host}:{port} (Ctrl-C ends it)", flush=True)
    if not local:
        print(
            "algonet play: everyone who reaches this machine can use it; leave --host out to keep it here.",
            file=sys.stderr,
        )
    with contextlib.suppress(KeyboardInterrupt):
        ui.run(
            host=host, port=port, show=show, reload=False, title="algonet play", favicon="∿", show_welcome_message=False,
            timeout_graceful_shutdown=1,
        )  # fmt: skip
