"""A headless Chromium spoken to over a pipe: open a page at a width and in a colour scheme, ask it things, photograph it."""

from __future__ import annotations

import base64
import fcntl
import itertools
import json
import os
import select
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any

PROGRAM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run", "--disable-sync",
    "--disable-background-networking", "--disable-component-update", "--remote-debugging-pipe",
)  # fmt: skip


class Chromium:
    """One browser with one page. `messages` collects what the page's console said and the errors it threw."""

    def __init__(self, profile: Path):
        read_commands, self._commands = os.pipe()
        self._answers, write_answers = os.pipe()

        def place() -> None:
            """Descriptors 3 and 4 are what the protocol uses; copies out of the way first, or one overwrites the other."""
            copies = [fcntl.fcntl(descriptor, fcntl.F_DUPFD, 10) for descriptor in (read_commands, write_answers)]
            os.dup2(copies[0], 3)
            os.dup2(copies[1], 4)

        self._process = subprocess.Popen(
            [str(PROGRAM), *FLAGS, f"--user-data-dir={profile}", "about:blank"],
            preexec_fn=place,
            pass_fds=(3, 4),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(read_commands)
        os.close(write_answers)
        self._numbers, self._buffer = itertools.count(1), b""
        self._loaded = False
        self.messages: list[str] = []
        self._session: str | None = None
        target = self._ask("Target.createTarget", url="about:blank")["targetId"]
        self._session = self._ask("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            self._ask(f"{domain}.enable")

    def open(self, url: str, *, width: int, height: int = 900, scheme: str = "light") -> None:
        """Go to `url` and wait until it has loaded."""
        self.messages.clear()
        self._ask("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        self._ask("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        self._loaded = False
        self._ask("Page.navigate", url=url)
        while not self._loaded:
            self._receive()

    def value(self, script: str) -> Any:
        """What a JavaScript expression gives; a promise is waited for."""
        answer = self._ask("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def photograph(self, path: Path, selector: str = "html") -> Path:
        """A PNG of one element, also of what lies below the window."""
        box = self.value(
            f"(r => ({{x: r.x + scrollX, y: r.y + scrollY, width: r.width, height: r.height, scale: 1}}))"
            f"(document.querySelector({json.dumps(selector)}).getBoundingClientRect())"
        )
        shot = self._ask("Page.captureScreenshot", format="png", clip=box, captureBeyondViewport=True)
        path.write_bytes(base64.b64decode(shot["data"]))
        return path

    def close(self) -> None:
        self._process.terminate()
        self._process.wait(300)
        os.close(self._commands)
        os.close(self._answers)

    def _ask(self, method: str, **parameters: Any) -> Any:
        number = next(self._numbers)
        command = {"id": number, "method": method, "params": parameters}
        if self._session is not None:
            command["sessionId"] = self._session
        os.write(self._commands, json.dumps(command).encode() + b"\0")
        while True:
            message = self._receive()
            if message.get("id") == number:
                assert "error" not in message, f"{method}: {message['error']}"
                return message["result"]

    def _receive(self, seconds: float = 600) -> dict[str, Any]:
        """The next message; events are noted."""
        until = time.monotonic() + seconds
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._answers], [], [], max(0, until - time.monotonic()))
            chunk = os.read(self._answers, 2**20) if ready else b""
            assert chunk, "the browser does not answer" if not ready else "the browser has gone"
            self._buffer += chunk
        line, _, self._buffer = self._buffer.partition(b"\0")
        message = json.loads(line)
        event, details = message.get("method"), message.get("params", {})
        if event == "Page.loadEventFired":
            self._loaded = True
        elif event == "Runtime.consoleAPICalled":
            self.messages.append(f"{details['type']}: {[a.get('value') for a in details['args']]}")
        elif event == "Runtime.exceptionThrown":
            self.messages.append(details["exceptionDetails"]["text"])
        elif event == "Log.entryAdded":
            self.messages.append(f"{details['entry']['level']}: {details['entry']['text']}")
        return message
