"""What the rooms compute, without a browser: pictures react, bounds hold, the code they show runs."""

from __future__ import annotations

import contextlib
import io
import itertools
import re
import time

import pytest
import torch

pytest.importorskip("nicegui")

from algonet.apps import drawing
from algonet.apps.play import sandbox
from algonet.apps.play.rooms import fractals, renderer, smooth_programs, sorting, while_programs
from algonet.ifs import PRESETS
from algonet.render import Mesh, icosphere


def _runs(code: str) -> str:
    """What the lines print; each room's code runs alone."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        # A file of its own: @smooth reads the source of the function it is given
        exec(compile(code, "room", "exec"), {"__name__": "room"})
    return out.getvalue()


def test_pictures_and_colours():
    url = drawing.picture(drawing.coloured(torch.tensor([[0.0, 1.0], [float("nan"), 2.0]])))
    assert url.startswith("data:image/webp;base64,")
    assert (drawing.coloured(torch.tensor([float("nan"), 1.0]))[0] == 0).all(), "what is not finite is black"
    assert drawing.shade(-5) == drawing.shade(0.0)


# Loops


def test_while_surface_follows_the_wish():
    small = while_programs.Wish(size=48, solid=False)
    surface = while_programs.Surface()
    first = while_programs.paint(small, surface)
    assert "x0(3.00, 4.00) = 12.000" in first["read"], "exact on integers"
    harder = while_programs.paint(while_programs.Wish(size=48, solid=False, exit="Sech"), surface)
    assert "x0(3.00, 4.00) = 10.3" in harder["read"]
    assert first["picture"] != harder["picture"]
    turned = [while_programs.paint(while_programs.Wish(size=48, azimuth=a), surface)["picture"] for a in (0.1, 1.0)]
    assert turned[0] != turned[1]


def test_turning_the_surface_does_not_run_the_program_again(monkeypatch):
    surface, runs, evaluate = while_programs.Surface(), [], while_programs.evaluate
    monkeypatch.setattr(while_programs, "evaluate", lambda *call: runs.append(call) or evaluate(*call))
    for azimuth in (0.1, 1.0):
        while_programs.paint(while_programs.Wish(size=16, azimuth=azimuth), surface)
    assert len(runs) == 2, "the grid and the chosen point, once each"
    moved = while_programs.paint(while_programs.Wish(size=16, at=(2.0, 5.0)), surface)
    assert len(runs) == 3
    assert "x0(2.00, 5.00)" in moved["read"]


def test_the_surface_stays_within_its_picture():
    surface = while_programs.Surface()
    for azimuth in (0.0, 0.65, 0.8, 2.4, 4.0):
        wish = while_programs.Wish(size=32, azimuth=azimuth, height=1.2)
        while_programs.paint(wish, surface)
        pixels = while_programs._solid(wish, surface)
        border = [pixels[0], pixels[-1], pixels[:, 0], pixels[:, -1]]
        assert max(int(line.max(0).max() - line.min(0).min()) for line in border) < 60


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("x0 := ", "line 1"),
        ("import os", "line 1"),
        ("x0 := x1\n" * 1000, "at most 4000 characters"),
        ("x0 := x1\n" * 200, "at most 80 statements"),
        ("LOOP x1 DO\n" * 6 + "x0 := x0 + 1\n" + "END\n" * 6, "at most 4 deep"),
    ],
)
def test_bad_programs_are_answered(source, said):
    with pytest.raises(ValueError, match=said):
        while_programs.paint(while_programs.Wish(source=source, size=48), while_programs.Surface())


def test_programs_that_do_not_halt_are_cut_off():
    forever = "x3 := x3 + 1\nWHILE x3 != 0 DO\n  x3 := x3 + 1\n  WHILE x3 != 0 DO\n    x0 := x0 + 1\n  END\nEND"
    begin = time.process_time()
    found = while_programs.paint(while_programs.Wish(source=forever, size=48, solid=False), while_programs.Surface())
    assert "Somewhere on the surface loops were cut off after 100 rounds." in found["note"]
    assert "At the chosen point loops were cut off after 447 rounds." in found["note"]
    assert time.process_time() - begin < 60
    constant = while_programs.paint(while_programs.Wish(source="x0 := 7", size=48), while_programs.Surface())
    assert "= 7.000 · d/dx1 = 0.000" in constant["read"]


def test_the_value_at_a_point_is_that_of_the_code_below_it():
    source = while_programs.library_source("power")
    wish = while_programs.Wish(source=source, size=16, at=(3.0, 4.0))
    assert "x0(3.00, 4.00) = 81.000" in while_programs.paint(wish, while_programs.Surface())["read"]
    assert "81." in _runs(while_programs.code(wish))


@pytest.mark.parametrize("azimuth", [0.3, 1.9, 3.4, 5.0])
def test_the_surface_has_axes(azimuth):
    """Lines along the near edges of the ground and at the left, and words that lie apart and within the picture."""
    wish = while_programs.Wish(size=400, azimuth=azimuth, height=0.5)
    marks = while_programs.paint(wish, while_programs.Surface())["marks"]
    assert marks.count("<polyline") == 3
    assert marks.count("<circle") == 1, "the chosen point"
    found = re.findall(r'<text x="([^"]+)" y="([^"]+)"[^>]*>([^<]+)<', marks)
    assert {text for _, _, text in found} == {"x1 = 0", "x1 = 6", "x2 = 0", "x2 = 6", "0", "36"}
    places = {text: (float(x), float(y)) for x, y, text in found}
    for (one, (x, y)), (other, (u, v)) in itertools.combinations(places.items(), 2):
        assert abs(x - u) > 45 or abs(y - v) > 11, f"{one} and {other} stand on each other"
    assert all(0 < c < 400 for place in places.values() for c in place)


# Sorting


def test_sorting_shows_what_is_computed():
    found = sorting.compute(sorting.Wish(steepness=100.0))
    assert [round(v, 2) for v in found["sorted"]] == sorted(sorting.START)
    softer = sorting.compute(sorting.Wish(steepness=2.0))
    for name in ("bars", "network", "permutation"):
        assert found[name] != softer[name]
    assert found["permutation"].count("<rect") == 64


# Fractals


def test_corners_and_maps_are_inverse():
    maps, extent = fractals.preset("fern")
    for row, points in zip(maps, fractals.corners(maps, extent), strict=True):
        torch.testing.assert_close(fractals.map_through(points, extent), row, atol=1e-4, rtol=1e-4)


def test_every_system_can_be_bent():
    for name in PRESETS:
        maps, extent = fractals.preset(name)
        before = fractals.paint(fractals.Wish(maps, extent, size=32))["picture"]
        maps[0, 0] += 0.2 * (extent[1] - extent[0])
        assert fractals.paint(fractals.Wish(maps, extent, size=32))["picture"] != before


def test_a_drawing_is_fitted(monkeypatch):
    monkeypatch.setattr(fractals, "STEPS", 30)
    strokes = [[(0.2, 0.8), (0.5, 0.2), (0.8, 0.8)]]
    overlaps = [overlap for _, _, overlap in fractals.fitting(strokes, 3)]
    assert len(overlaps) == 30
    assert max(overlaps[:15]) > overlaps[0] + 0.05
    with pytest.raises(ValueError, match="Draw something first"):
        fractals.first_maps(fractals.target([], fractals.SIDE), 3)


# Rendering


def test_renderer_follows_the_wish():
    mesh = renderer.painted(icosphere(1))
    wishes = [{}, {"scale": 8.0}, {"layer": "depth"}, {"layer": "silhouette"}, {"azimuth": 2.0}]
    pictures = [renderer.paint(renderer.Wish(mesh, size=48, **wish))["picture"] for wish in wishes]
    assert len(set(pictures)) == len(pictures)


def test_uploads_are_bounded(monkeypatch, tmp_path):
    icosphere(1).save(tmp_path / "ball.obj")
    data = (tmp_path / "ball.obj").read_bytes()
    assert len(renderer.load("ball.obj", data).faces) == 80
    for name, content, said in [
        ("ball.exe", data, "meshes are read as"),
        ("ball.obj", b"v 1 2\nf 1 2 9999", "ball.obj"),
        ("ball.ply", b"\0" * 100, "ball.ply"),
        ("ball.obj", b"v 0 0 0\n" * (renderer.LARGEST // 8 + 1), "at most 2 MB"),
        ("../../ball.stl", b"", "ball.stl"),
    ]:
        with pytest.raises(ValueError, match=said) as raised:
            renderer.load(name, content)
        assert "/tmp" not in str(raised.value)
    monkeypatch.setattr(renderer, "MOST_FACES", 10)
    with pytest.raises(ValueError, match="at most 10 faces, this mesh has 80"):
        renderer.load("ball.obj", data)


def test_a_ball_is_fitted(monkeypatch):
    monkeypatch.setattr(renderer, "STEPS", 4)
    monkeypatch.setattr(renderer, "SIDE", 24)
    rounds = list(itertools.islice(renderer.fitting(renderer.painted(renderer.MESHES["star"]())), 3))
    assert [step for step, _, _ in rounds] == [4, 8, 12]
    assert rounds[-1][2] < rounds[0][2]


# Python


@pytest.fixture(scope="module")
def worker():
    child = sandbox.Worker()
    yield child
    child.close()


def _wish(name: str, steepness: float) -> smooth_programs.Wish:
    if name == smooth_programs.PICTURE:
        return smooth_programs.Wish(name, "", {"x": 0.3}, "x", 0.0, 1.0, steepness, size=24)
    _, low, high, start, *_ = smooth_programs.CURVES[name]
    source = smooth_programs.source_of(name)
    along = sandbox.arguments_of(source)[0]
    return smooth_programs.Wish(name, source, {along: start}, along, low, high, steepness)


@pytest.mark.parametrize("name", [*smooth_programs.CURVES, smooth_programs.PICTURE])
def test_programs_react(name, worker):
    soft, hard = (smooth_programs.compute(_wish(name, steepness), worker) for steepness in (1.0, 20.0))
    assert (soft["svg"], soft["picture"]) != (hard["svg"], hard["picture"])
    if name == "bouncing_ball":  # the mean of its states lies on the floor: that is said, and particles are drawn
        assert "far from the mean over the program's paths" in hard["note"]
        assert "#e9a23b" in hard["svg"]
    else:
        assert soft["read"] != hard["read"]


OWN = """
def mine(x, gain):
    y = 0.0
    if x > gain:
        y = gain * x
    return y
"""


def test_a_visitors_function_has_sliders_and_slopes(worker):
    wish = smooth_programs.Wish("own", OWN, {"x": 2.0, "gain": 0.5}, "gain", -1.0, 1.0, 10.0)
    found = smooth_programs.compute(wish, worker)
    assert "as written 1.000" in found["read"]
    assert "by x" in found["read"]
    assert "by gain" in found["read"]
    assert sandbox.arguments_of(OWN) == ["x", "gain"]


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("import os", "one function"),
        ("def f(x):\n    import os\n    return x", "line 2: nothing is imported"),
        ("def f(x):\n    return x.__class__", "line 2: `.__class__`"),
        ("def f(x):\n    return x.numpy().tofile('a')", "line 2: `.tofile`|line 2: `.numpy`"),
        ("def f(x):\n    return __builtins__", "line 2: names with two underscores"),
        ("def f(x):\n    return f'{x.__class__}'", "`.__class__`"),
        ("def f(x):\n    return open('/etc/passwd')", "line 2: name 'open' is not defined"),
        ("def f(x):\n    return eval('1')", "line 2: name 'eval' is not defined"),
        ("def f(x:\n    return x", "line 1"),
        ("def f(x):\n    return x + y", "line 2: name 'y' is not defined"),
        ("def f():\n    return 1.0", "one to four plain arguments"),
        ("@other\ndef f(x):\n    return x", "the only decorator"),
        ("def f(x):\n    return [x] * 10**10", "line 2"),
        ("def f(x):\n    return x\n" + "# \n" * 2000, "at most 4000 characters"),
    ],
)
def test_functions_that_ask_for_more_are_answered(worker, source, said):
    wish = smooth_programs.Wish("own", source, {"x": 1.0}, "x", 0.0, 1.0, 10.0)
    with pytest.raises(ValueError, match=said):
        smooth_programs.compute(wish, worker)


def test_own_functions_do_not_run_for_other_machines(worker, monkeypatch):
    monkeypatch.setattr(smooth_programs, "EDITABLE", [False])
    wish = smooth_programs.Wish("own", OWN, {"x": 2.0, "gain": 0.5}, "gain", -1.0, 1.0, 10.0)
    with pytest.raises(ValueError, match="serves this machine alone"):
        smooth_programs.compute(wish, worker)
    assert smooth_programs.compute(_wish("fare", 4.0), worker)["read"]


def test_a_function_that_does_not_end_is_ended():
    child = sandbox.Worker(seconds=1.0)
    wish = smooth_programs.Wish(
        "own",
        "def f(x):\n    for i in range(10**9):\n        x = x + 1.0\n    return x",
        {"x": 1.0},
        "x",
        0.0,
        1.0,
        10.0,
    )
    with pytest.raises(ValueError, match="it took more than 1 seconds"):
        smooth_programs.compute(wish, child)
    child.close()


# The code that each room shows


def test_the_code_of_each_room_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    wish = while_programs.Wish()
    assert "12." in _runs(while_programs.code(wish))
    wish.source = "x0 := x1"
    assert "3" in _runs(while_programs.code(wish))
    assert "0.95" in _runs(sorting.code(sorting.Wish(steepness=100.0)))
    maps, extent = fractals.preset("koch")
    assert "256" in _runs(fractals.code("koch", fractals.Wish(maps, extent)))
    assert "256" in _runs(fractals.code(None, fractals.Wish(maps, extent)))
    assert "Draw something" in fractals.code(None, fractals.Wish(maps, extent, drawing=True))
    icosphere(1).save(tmp_path / "mine.obj")
    for name in (*renderer.CALLS, "mine.obj"):
        for layer in renderer.PICTURES:
            wish = renderer.Wish(icosphere(0), layer=layer, scale=2.0)
            assert "640" in _runs(renderer.code(name, wish))
    monkeypatch.setattr(renderer, "STEPS", 1)
    monkeypatch.setattr(renderer, "SIDE", 16)
    for name in ("box", "star"):
        assert "faces" in _runs(renderer.code(name, renderer.Wish(icosphere(0), fitted=icosphere(0))))
    assert len(Mesh.load(tmp_path / "fitted.obj").faces) == 1280


@pytest.mark.parametrize("room", [while_programs, sorting, fractals, renderer, smooth_programs])
def test_each_room_has_a_thumbnail(room):
    assert room.thumbnail().startswith(("<img", "<svg"))


def test_a_sheet_to_draw_on_is_empty():
    maps, extent = fractals.preset("fern")
    empty = fractals.paint(fractals.Wish(maps, extent, size=32, drawing=True))["picture"]
    assert empty != fractals.paint(fractals.Wish(maps, extent, size=32))["picture"]
    assert empty == fractals.paint(fractals.Wish(maps * 0.5, extent, size=32, drawing=True))["picture"]


def test_the_code_of_smooth_programs_runs(tmp_path):
    """From a file: @smooth reads its source."""
    import subprocess
    import sys

    for name in ("fare", smooth_programs.PICTURE):
        path = tmp_path / f"{name}.py"
        path.write_text(smooth_programs.code(_wish(name, 4.0)), encoding="utf-8")
        done = subprocess.run([sys.executable, str(path)], capture_output=True, text=True, timeout=300)
        assert "tensor" in done.stdout, done.stderr
