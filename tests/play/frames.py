"""Pictures a second while someone drags, in Chromium, by room: `PYTHONPATH=src:tests:tests/cli python -m play.frames`.

The server runs as a visitor's would. The mouse goes around over the room's picture at 60 events a second for some seconds; what
counts is how often the picture, or what is drawn on top of it, changes.
"""

from __future__ import annotations

import math
import os
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "cli"))
from chromium import Chromium

#: Where to press, and how far to go around there, in shares of the picture's sides.
ROOMS = {
    "while": (0.5, 0.5, 0.3),
    "sort": (0.19, 0.5, 0.2),
    "fractals": (0.5, 0.5, 0.1),  # at the first corner of a map, wherever it is
    "render": (0.5, 0.5, 0.2),
    "programs": (0.5, 0.5, 0.3),
}
SECONDS = 6.0
COUNT = """(() => {
  window.frames_ = 0;
  const seen = new Map();
  const look = () => {
    let changed = false;
    for (const stage of document.querySelectorAll('.stage')) {
      const shown = (stage.querySelector('img')?.src ?? '') + (stage.querySelector('svg')?.innerHTML ?? '');
      if (seen.has(stage) && seen.get(stage) !== shown) changed = true;
      seen.set(stage, shown);
    }
    if (changed) window.frames_ += 1;
    requestAnimationFrame(look);
  };
  look();
})()"""
DRAWN = """[...document.querySelectorAll('.stage img')].some(i => i.src.startsWith('data:image/webp'))
  || !!document.querySelector('.stage svg rect')"""


def measure(browser: Chromium, url: str, room: str) -> float:
    x, y, radius = ROOMS[room]
    browser.open(f"{url}/{room}", width=1200)
    until = time.monotonic() + 180
    while not browser.value(DRAWN) and time.monotonic() < until:
        time.sleep(0.2)
    left, top, width, height = browser.value(
        "(r => [r.x, r.y, r.width, r.height])(document.querySelector('.stage').getBoundingClientRect())"
    )
    corner = browser.value(
        "(c => c && (r => [r.x + r.width / 2, r.y + r.height / 2])(c.getBoundingClientRect()))"
        "(document.querySelector('.stage svg circle'))"
    )
    if room == "fractals" and corner:
        x, y = (corner[0] - left) / width, (corner[1] - top) / height

    def mouse(kind: str, turn: float) -> None:
        at = (x + radius * math.sin(turn), y + radius * (1 - math.cos(turn)) / 2)
        browser._ask(
            "Input.dispatchMouseEvent", type=kind, x=left + at[0] * width, y=top + at[1] * height, button="left",
            buttons=0 if kind == "mouseReleased" else 1, clickCount=1,
        )  # fmt: skip

    mouse("mousePressed", 0.0)
    for warm in (True, False):  # the first seconds find the size that this machine draws in time
        if not warm:
            browser.value(COUNT)
        begin = time.monotonic()
        while (now := time.monotonic() - begin) < (3.0 if warm else SECONDS):
            mouse("mouseMoved", 2 * now)
            time.sleep(1 / 60)
    frames = browser.value("window.frames_") / (time.monotonic() - begin)
    mouse("mouseReleased", 0.0)
    return frames


def main() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    url = f"http://127.0.0.1:{port}"
    server = subprocess.Popen([sys.executable, "-m", "algonet", "play", "--no-show", "--port", str(port)])
    try:
        for _ in range(400):
            try:
                urllib.request.urlopen(url, timeout=5).close()
                break
            except OSError:
                time.sleep(0.3)
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
            browser = Chromium(Path(profile))
            for room in sys.argv[1:] or ROOMS:
                frames = measure(browser, url, room)
                print(f"{room}: {frames:.1f} pictures a second (load {os.getloadavg()[0]:.1f})", flush=True)
            browser.close()
    finally:
        server.terminate()
        server.wait()


if __name__ == "__main__":
    main()
