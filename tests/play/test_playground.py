"""The playground in a real browser: each room draws, reacts to a slider and survives bad input; visitors are kept apart."""

from __future__ import annotations

import base64
import http.client
import io
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.parse
import urllib.request
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

sys.path.insert(0, str(Path(__file__).parents[1] / "cli"))
from chromium import PROGRAM, Chromium

pytest.importorskip("nicegui")
pytestmark = pytest.mark.slow

ROOMS = ("while", "sort", "fractals", "render", "programs")
#: What a room shows: its pictures, its SVG and what it reads out.
SHOWN = """JSON.stringify([...document.querySelectorAll('.stage')]
  .map(s => [s.querySelector('img')?.src, s.querySelector('svg')?.innerHTML])
  .concat([...document.querySelectorAll('.read')].map(r => r.textContent)))"""
DRAWN = "(s => s.includes('data:image/webp') || s.includes('<rect') || s.includes('<polyline'))(" + SHOWN + ")"
READ = "document.querySelector('.read').textContent"
CODE = "document.querySelector('.code code, .code pre').innerText"
PROBLEM = "[...document.querySelectorAll('.problem:not(.waiting)')].map(p => p.textContent).join('')"
#: Everything the page loaded that is not from this server.
ELSEWHERE = """performance.getEntriesByType('resource').map(e => e.name)
  .filter(name => !name.startsWith(location.origin) && !name.startsWith('data:'))"""
#: Puts a text into the editor.
WRITE = """(content => (view => view.dispatch({changes: {from: 0, to: view.state.doc.length, insert: %s}}))
  (content.cmTile?.view ?? content.cmView.view))(document.querySelector('.cm-content'))"""


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "algonet", "play", "--no-show", "--port", str(port)]
    # Without what tells NiceGUI that it runs inside a test
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST")}
    process = subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
    )
    url = f"http://127.0.0.1:{port}"
    until = time.monotonic() + 600
    while time.monotonic() < until and process.poll() is None:
        try:
            urllib.request.urlopen(url, timeout=5).close()
            break
        except OSError:
            time.sleep(0.3)
    assert process.poll() is None, process.stdout.read()
    yield url
    process.send_signal(signal.SIGINT)
    begin = time.monotonic()
    try:
        process.wait(600)
    finally:
        process.kill()
        said = process.stdout.read()
        process.stdout.close()
    assert time.monotonic() - begin < 600, "Ctrl-C ends it"
    assert process.returncode in (0, 130)
    assert "Traceback" not in said


@pytest.fixture
def browser(tmp_path):
    if PROGRAM is None:
        pytest.skip("no Chromium on this machine")
    running = Chromium(tmp_path / "profile")
    yield running
    running.close()


def _until(browser: Chromium, script: str, seconds: float = 600) -> None:
    until = time.monotonic() + seconds
    while not browser.value(script):
        assert time.monotonic() < until, f"{script}: {browser.value(PROBLEM)}: {browser.messages}"
        time.sleep(0.1)


def _key(browser: Chromium, name: str, key: str = "ArrowRight", times: int = 3) -> None:
    """Press a key on the slider of that name."""
    browser.value(f"document.querySelector('[aria-label={json.dumps(name)}]').focus?.()")
    for _ in range(times):
        event = f"new KeyboardEvent('keydown', {{key: '{key}', code: '{key}', keyCode: 39, bubbles: true}})"
        browser.value(
            f"(s => (s.querySelector('[tabindex]') ?? s).dispatchEvent({event}))"
            f"(document.querySelector('[aria-label={json.dumps(name)}]'))"
        )


def _choose(browser: Chromium, name: str, option: str) -> None:
    """In the list of that name."""
    browser.value(
        "(name => [...document.querySelectorAll('.q-select')]"
        f".find(s => s.querySelector('.q-field__label')?.textContent === name).click())({json.dumps(name)})"
    )
    item = f"[...document.querySelectorAll('.q-menu .q-item')].find(i => i.innerText.trim() === {json.dumps(option)})"
    _until(browser, f"!!{item}", 60)
    browser.value(f"{item}.click()")
    _until(browser, "!document.querySelector('.q-menu')", 60)


def _press(browser: Chromium, text: str) -> None:
    """A button or a switch."""
    browser.value(
        "(text => [...document.querySelectorAll('button, .q-toggle')].find(b => b.innerText.trim() === text).click())"
        f"({json.dumps(text)})"
    )


def _picture(browser: Chromium) -> np.ndarray:
    """The pixels of the first picture."""
    source = browser.value("document.querySelector('.stage img').src")
    with Image.open(io.BytesIO(base64.b64decode(source.partition(",")[2]))) as picture:
        return np.asarray(picture.convert("RGB")).astype(int)


def _drag(browser: Chromium, start: tuple[float, float], end: tuple[float, float]) -> None:
    """With the mouse over the first picture, in shares of its sides."""
    box = browser.value(
        "(r => [r.x, r.y, r.width, r.height])(document.querySelector('.stage').getBoundingClientRect())"
    )
    for kind, at in (("mousePressed", start), ("mouseMoved", end), ("mouseReleased", end)):
        browser._ask(
            "Input.dispatchMouseEvent", type=kind, x=box[0] + at[0] * box[2], y=box[1] + at[1] * box[3], button="left",
            buttons=0 if kind == "mouseReleased" else 1, clickCount=1,
        )  # fmt: skip
        time.sleep(0.1)


def test_each_room_draws_and_reacts(server, browser):
    sliders = {
        "while": "x1",
        "sort": "steepness",
        "fractals": "softness",
        "render": "softness",
        "programs": "steepness",
    }
    for room in ROOMS:
        browser.open(f"{server}/{room}", width=1200)
        _until(browser, DRAWN)
        before = browser.value(SHOWN)
        _key(browser, sliders[room])
        _until(browser, f"{SHOWN} !== {json.dumps(before)}")
        assert "import" in browser.value("document.querySelector('.code').textContent"), "the code that does the same"
        assert browser.value(PROBLEM) == ""
        assert not [m for m in browser.messages if m.startswith("error")], browser.messages
        assert browser.value("document.documentElement.scrollWidth") <= 1200
        assert browser.value(ELSEWHERE) == [], "nothing comes from elsewhere"


def test_dragging(server, browser):
    for room, start, end in (
        ("while", (0.5, 0.5), (0.8, 0.5)), ("sort", (0.19, 0.7), (0.19, 0.3)), ("render", (0.5, 0.5), (0.7, 0.6)),
        ("programs", (0.5, 0.5), (0.8, 0.5)),
    ):  # fmt: skip
        browser.open(f"{server}/{room}", width=1200)
        _until(browser, DRAWN)
        time.sleep(0.5)
        before = browser.value(SHOWN)
        _drag(browser, start, end)
        _until(browser, f"{SHOWN} !== {json.dumps(before)}")


def test_on_a_phone_in_the_dark(server, browser):
    for room in ("", *ROOMS):
        browser.open(f"{server}/{room}", width=390, scheme="dark")
        if room:
            _until(browser, DRAWN)
        assert browser.value("document.documentElement.scrollWidth") <= 390, f"/{room} scrolls sideways"
        _until(browser, "getComputedStyle(document.body).backgroundColor === 'rgb(18, 21, 26)'", 20)


def test_bad_programs_are_one_line_on_the_page(server, browser):
    browser.open(f"{server}/while", width=1200)
    _until(browser, DRAWN)
    browser.value(WRITE % json.dumps("WHILE x1 DO"))
    _until(browser, f"{PROBLEM} !== ''")
    assert "line 1" in browser.value(PROBLEM)
    assert "Traceback" not in browser.value("document.body.textContent")
    browser.value(WRITE % json.dumps("x0 := x1"))
    _until(browser, f"{PROBLEM} === '' && document.querySelector('.read').textContent.includes('= 3.000')")


def test_two_visitors_do_not_disturb_each_other(server, browser, tmp_path):
    other = Chromium(tmp_path / "other")
    try:
        for one in (browser, other):
            one.open(f"{server}/sort", width=1200)
            _until(one, DRAWN)
        before = other.value(SHOWN)
        first = browser.value(SHOWN)
        _key(browser, "steepness", times=5)
        _until(browser, f"{SHOWN} !== {json.dumps(first)}")
        time.sleep(0.5)
        assert other.value(SHOWN) == before
    finally:
        other.close()


def _status(url: str, method: str = "GET", **headers: str) -> int:
    """The answer to a request whose headers alone are sent."""
    place = urllib.parse.urlsplit(url)
    connection = http.client.HTTPConnection(place.hostname, place.port, timeout=600)
    connection.putrequest(method, place.path or "/", skip_host="Host" in headers)
    for name, value in headers.items():
        connection.putheader(name.replace("_", "-"), value)
    connection.endheaders()
    status = connection.getresponse().status
    connection.close()
    return status


def test_what_the_server_refuses(server):
    assert _status(server) == 200
    assert _status(server, Host="elsewhere.example") == 403, "a name made to point here"
    assert _status(f"{server}/_nicegui/client/none/upload/1", "POST", Content_Length="5000000") == 413
    port = int(server.rpartition(":")[2])
    addresses = {info[4][0] for info in socket.getaddrinfo(socket.gethostname(), None, socket.AF_INET)}
    for address in addresses - {"127.0.0.1"}:
        with socket.socket() as probe:
            probe.settimeout(2)
            assert probe.connect_ex((address, port)) != 0, "it listens on this machine only"


def _upload(browser: Chromium, path: Path) -> None:
    root = browser._ask("DOM.getDocument")["root"]["nodeId"]
    node = browser._ask("DOM.querySelector", nodeId=root, selector="input[type=file]")["nodeId"]
    browser._ask("DOM.setFileInputFiles", nodeId=node, files=[str(path)])


def _rests(browser: Chromium, side: int) -> None:
    """Until the picture has its full size, and no other comes."""
    _until(browser, f"document.querySelector('.stage img').naturalWidth === {side}")
    shown = browser.value(SHOWN)
    time.sleep(1)
    while shown != (shown := browser.value(SHOWN)):
        time.sleep(1)


def test_uploads(server, browser, tmp_path):
    """A mesh is shown; what is none, or too large, is one line on the page, and the room goes on."""
    good, bad, large = (tmp_path / f"{name}.obj" for name in ("good", "bad", "large"))
    good.write_text("v 0 0 0\nv 1 0 0\nv 0 1 0\nv 0 0 1\nf 1 3 2\nf 1 2 4\nf 1 4 3\nf 2 3 4\n")
    bad.write_text("v 0 0 0\nf 1 2 seven\n")
    large.write_text("# " + "x" * 2_100_000)
    browser.open(f"{server}/render", width=1200)
    _until(browser, DRAWN)
    _press(browser, "fit a ball to it")
    _until(browser, f"{READ}.startsWith('step')")
    for path, said in ((bad, "bad.obj"), (large, "2 MB")):
        _upload(browser, path)
        _until(browser, f"{PROBLEM}.includes({json.dumps(said)})")
        assert "\n" not in browser.value(PROBLEM).strip()
        assert "Traceback" not in browser.value("document.body.textContent")
    step = browser.value(READ)
    _until(browser, f"{READ} !== {json.dumps(step)} && {READ}.startsWith('step')")  # the fit goes on
    assert "fit_mesh(targets" in browser.value(CODE)
    _upload(browser, good)
    _until(browser, f"{READ} === 'good.obj: 4 vertices, 4 faces' && {PROBLEM} === ''")
    _until(browser, f"{CODE}.includes('Mesh.load(') && {CODE}.includes('good.obj')")
    chosen = "[...document.querySelectorAll('.q-select')].map(s => s.innerText).join()"
    assert "good.obj" in browser.value(chosen)


def test_the_code_draws_what_is_seen(server, browser, tmp_path):
    browser.open(f"{server}/render", width=1200)
    _until(browser, DRAWN)
    for layer in ("colour", "depth"):
        _choose(browser, "layer", layer)
        _until(browser, f"{CODE}.includes({json.dumps({'colour': 'rgb.clamp', 'depth': 'viridis'}[layer])})")
        _rests(browser, 640)
        script = tmp_path / "seen.py"
        script.write_text(browser.value(CODE), encoding="utf-8")
        subprocess.run([sys.executable, str(script)], check=True, cwd=tmp_path, timeout=600)
        with Image.open(tmp_path / "mesh.png") as written:
            drawn = np.asarray(written.convert("RGB")).astype(int)
        seen = _picture(browser)
        assert seen.shape == drawn.shape == (640, 640, 3)
        assert drawn.std() > 20
        assert np.abs(seen - drawn).mean() < 2, "but for the page's compression"


def test_loops_say_what_they_show(server, browser):
    browser.open(f"{server}/while", width=1200)
    _until(browser, DRAWN)
    _until(browser, f"{READ}.includes('= 12.000')")  # an exact exit greets
    words = browser.value("[...document.querySelectorAll('.stage svg text')].map(t => t.textContent).join()")
    assert "x1 = 6" in words
    assert "x2 = 6" in words
    steepness = "document.querySelector('[aria-label=steepness]').offsetParent !== null"
    assert not browser.value(steepness), "nothing that this exit has"
    _choose(browser, "exit", "Sech")
    _until(browser, f"{READ}.includes('= 10.349') && {CODE}.includes('Sech(2)') && {steepness}")
    _choose(browser, "exit", "SmoothTent")
    _until(browser, f"{READ}.includes('= 12.000') && {CODE}.includes('SmoothTent(1)')")
    browser.value(
        "(window.seen = [], new MutationObserver(() => window.seen.push("
        "[document.querySelector('.read').classList.contains('stale'), document.querySelector('.read').textContent]))"
        ".observe(document.querySelector('.read'), {attributes: true, childList: true, characterData: true, subtree: true}))"
    )
    _choose(browser, "program", "power")
    _until(browser, f"{READ}.includes('= 81.000') && {CODE}.includes('power')")
    _until(browser, "!document.querySelector('.read').classList.contains('stale')")
    assert any(stale and "12.000" in text for stale, text in browser.value("window.seen")), "the old value is greyed"


def test_drawing_starts_empty_and_a_fit_takes_it_over(server, browser):
    browser.open(f"{server}/fractals", width=1200)
    _until(browser, DRAWN)
    _press(browser, "fit the drawing")
    _until(browser, f"{PROBLEM}.includes('Draw something first')")
    _press(browser, "draw on the picture")
    _until(browser, f"{CODE}.includes('Draw something')")
    _rests(browser, 380)
    assert _picture(browser).max() < 16, "an empty sheet"
    assert browser.value("document.querySelectorAll('.stage svg polygon').length") == 0
    _drag(browser, (0.3, 0.7), (0.7, 0.3))
    _rests(browser, 380)
    assert _picture(browser).max() > 120
    on = "[...document.querySelectorAll('.q-toggle')].find(t => t.innerText.includes('draw')).getAttribute('aria-checked')"
    assert browser.value(on) == "true"
    _press(browser, "fit the drawing")
    _until(browser, f"{READ}.startsWith('step') && {on} === 'false' && {CODE}.includes('IFS(torch.tensor')")
    _press(browser, "stop")


def test_functions_of_ones_own(server, browser):
    browser.open(f"{server}/programs", width=1200)
    _until(browser, DRAWN)
    browser.value(WRITE % json.dumps("def mine(speed, gain):\n    return gain * speed if speed > 0 else 0.0 * gain\n"))
    _until(browser, f"{READ}.includes('by speed') && {READ}.includes('by gain') && {CODE}.includes('mine(*inputs')")
    names = browser.value("[...document.querySelectorAll('.slider .name')].map(n => n.textContent)")
    assert names == ["speed", "gain", "steepness"]
    assert "A function of your own" in browser.value("document.body.innerText")
    browser.value(WRITE % json.dumps("def mine(speed):\n    speed = 2 * speed\n    return speed + missing\n"))
    _until(browser, f"{PROBLEM}.includes(\"line 3: name 'missing' is not defined\")")
    _choose(browser, "program", "bouncing_ball")
    _until(browser, "document.body.innerText.includes('far from the mean over the program')")
    colours = browser.value("[...document.querySelectorAll('.stage polyline')].map(p => p.getAttribute('stroke'))")
    assert "#e9a23b" in colours, "particles beside"


def test_home_shows_what_the_rooms_draw(server, browser):
    browser.open(server, width=1200)
    _until(browser, "document.querySelectorAll('.thumb img, .thumb svg').length === 5")
    drawn = browser.value("[...document.querySelectorAll('.thumb')].map(t => t.innerHTML.length)")
    assert min(drawn) > 1000
