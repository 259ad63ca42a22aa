"""`algonet play`: a playground in the browser, one room per domain, served from this machine with all its assets.

What a visitor does is turned into numbers and WHILE-programs; Python runs in the one room for it, confined (`sandbox.py`).
Every room's state belongs to one page of one visitor; programs, uploads and fits are bounded. `server.py` serves, `stage.py`
is what rooms are made of, `rooms/` holds them: a pure function that computes the picture, and `build`, which lays it out.
"""

from __future__ import annotations


def serve(host: str = "127.0.0.1", port: int = 8137, show: bool = True) -> None:
    """Serve the playground until interrupted; `show` opens it in the browser."""
    from .server import serve as run

    run(host, port, show)


__all__ = ["serve"]
