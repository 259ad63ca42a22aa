"""The commands `algonet render`, `fit-mesh` and `fit-camera`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
import typer
from PIL import Image
from typer.testing import CliRunner

from algonet.cli import render_commands
from algonet.fit.progress import progress_of
from algonet.fit.targets import picture_files
from algonet.render import Camera, Mesh, MeshFitter, Targets
from algonet.render.cameras import DEFAULT_FOV, camera_file, read_cameras
from fit.fitting_scenes import targets_of


@pytest.fixture
def program() -> typer.Typer:
    return render_commands.app


def test_render_command_writes_a_picture(program: typer.Typer, tmp_path: Path) -> None:
    runner = CliRunner()
    for layer in ("rgb", "silhouette", "depth"):
        out = tmp_path / f"{layer}.png"
        result = runner.invoke(
            program, ["render", "box", "--out", str(out), "--size", "24", "--layer", layer, "--views", "2"]
        )
        assert result.exit_code == 0, result.output
        with Image.open(out) as picture:
            assert picture.size == (48, 24)
            assert len(picture.getcolors(10_000) or []) > 5
    assert sorted(p.name for p in tmp_path.iterdir()) == ["depth.png", "rgb.png", "silhouette.png"]
    result = runner.invoke(program, ["render", str(tmp_path / "none.obj")])
    assert result.exit_code == 1
    assert "no such file" in str(result.exception)


SMALL = ["--steps", "2", "--size", "16", "--level", "1", "--texture", "128"]


def _views(program: typer.Typer, folder: Path) -> str:
    """A folder with three views of a box."""
    words = ["render", "box", "--views", "3", "--size", "16", "--out", str(folder)]
    assert CliRunner().invoke(program, words).exit_code == 0
    return str(folder)


def test_fit_command_writes_a_run(program: typer.Typer, tmp_path: Path) -> None:
    run = tmp_path / "run"
    views = _views(program, tmp_path / "views")
    result = CliRunner().invoke(program, ["fit-mesh", views, "--out", str(run), *SMALL])
    assert result.exit_code == 0, result.output
    names = {p.name for p in run.iterdir()}
    assert names == {"mesh.obj", "mesh.mtl", "mesh.png", "fit.gif", "progress.png", "report.json"}
    assert Mesh.load(run / "mesh.obj").texture is not None
    report = json.loads((run / "report.json").read_text())
    assert report["steps"] == 2
    assert report["quality"]["inverted"] == 0
    assert report["settings"]["level"] == 1
    with Image.open(run / "progress.png") as picture:
        assert picture.size == (48, 32)


def test_fit_command_takes_pictures(program: typer.Typer, tmp_path: Path) -> None:
    runner, pictures, out = CliRunner(), tmp_path / "views", tmp_path / "fit.ply"
    pictures.mkdir()
    with pytest.raises(ValueError, match="holds no pictures"):
        runner.invoke(program, ["fit-mesh", str(pictures), "--out", str(out), *SMALL], catch_exceptions=False)
    runner.invoke(program, ["render", "box", "--out", str(pictures / "a.png"), "--size", "20x16"])
    result = runner.invoke(program, ["fit-mesh", str(pictures), "--out", str(out), *SMALL])
    assert result.exit_code == 0, result.output
    assert len(Mesh.load(out).faces) == 80
    assert (tmp_path / "fit" / "report.json").exists()
    runner.invoke(program, ["render", "box", "--out", str(pictures / "b.png"), "--size", "16x20"])
    with pytest.raises(ValueError, match="same proportions"):
        runner.invoke(
            program, ["fit-mesh", str(pictures), "--out", str(out), *SMALL, "--force"], catch_exceptions=False
        )


def test_camera_files_say_where_pictures_were_taken(tmp_path: Path) -> None:
    """A camera written as transforms.json comes back, for pictures of another size too."""
    from algonet.render import Camera, rotation_error

    eyes = torch.tensor([[0.5, 1.0, 2.4], [-2.0, 0.3, 1.0]])
    cameras = Camera.look_at(eyes, fov=35.0)
    (tmp_path / "transforms.json").write_text(camera_file(cameras, ["a.png", "b.png"], (64, 96)))
    for size in ((32, 48), (64, 96)):
        names, back = read_cameras(tmp_path / "transforms.json", size)
        assert names == ["a.png", "b.png"]
        assert float(rotation_error(back, cameras).max()) < 0.05
        points = torch.randn(20, 3, generator=torch.Generator().manual_seed(0)) * 0.4
        assert torch.allclose(back.project(points, size), cameras.project(points, size), atol=1e-3)
    lens = {"fl_x": 50.0, "fl_y": 50.0, "cx": 24.0, "cy": 16.0, "w": 48, "h": 32}
    frames = json.loads((tmp_path / "transforms.json").read_text())["frames"]
    for frame in frames:
        del frame["camera_angle_x"]
    (tmp_path / "k.json").write_text(json.dumps({**lens, "frames": frames}))
    _, by_lens = read_cameras(tmp_path / "k.json", (64, 96))
    assert float(by_lens.matrix[0, 1, :3].norm()) == pytest.approx(2 * 50 / 32, rel=1e-4)


def test_fit_command_reads_a_camera_file(program: typer.Typer, tmp_path: Path) -> None:
    from algonet.cli.render_commands import _circle

    runner = CliRunner()
    for name in ("one", "two"):
        runner.invoke(program, ["render", "box", "--out", str(tmp_path / f"{name}.png"), "--size", "16"])
    (tmp_path / "transforms.json").write_text(camera_file(_circle(2, 20.0, 0.0, 40.0), ["one", "./two"], (24, 24)))
    arguments = [
        "fit-mesh",
        str(tmp_path),
        "--cameras",
        str(tmp_path / "transforms.json"),
        "--out",
        str(tmp_path / "run"),
    ]
    result = runner.invoke(program, [*arguments, *SMALL])
    assert result.exit_code == 0, result.output
    (tmp_path / "two.png").unlink()
    with pytest.raises(ValueError, match=r"names the picture \./two, which is neither"):
        runner.invoke(program, [*arguments, *SMALL, "--force"], catch_exceptions=False)
    (tmp_path / "transforms.json").write_text('{"frames": [{"file_path": "one"}]}')
    with pytest.raises(ValueError, match=r"transforms.json: not readable as a camera file.*transform_matrix"):
        runner.invoke(program, [*arguments, *SMALL, "--force"], catch_exceptions=False)


@pytest.mark.parametrize(
    ("content", "match"),
    [
        ("[1]", "wanted {'frames'"),
        ('{"frames": []}', "at least one"),
        ('{"fl_x": 9, "w": 0, "frames": [{"file_path": "a", "transform_matrix": EYE}]}', "`w` is in pixels, above 0"),
        ('{"fl_x": -9, "frames": [{"file_path": "a", "transform_matrix": EYE}]}', "`fl_x` is in pixels.*got -9"),
        ('{"fl_x": DIGITS, "frames": [{"file_path": "a", "transform_matrix": EYE}]}', "`fl_x` is in pixels"),
        ('{"fl_x": 9, "cx": 1e300, "frames": [{"file_path": "a", "transform_matrix": EYE}]}', "`cx` is in pixels"),
        ('{"fl_x": 9, "frames": [{"file_path": "a", "transform_matrix": FAR}]}', "t.json.*must be below"),
        ('{"camera_angle_x": 45, "frames": [{"file_path": "a", "transform_matrix": EYE}]}', "radians"),
        ('{"camera_angle_x": 1, "frames": [{"file_path": "a", "transform_matrix": TWICE}]}', "rotation matrix"),
    ],
)
def test_camera_files_that_cannot_be_meant_are_refused(content: str, match: str, tmp_path: Path) -> None:
    eye = torch.eye(4).tolist()
    (tmp_path / "t.json").write_text(
        content.replace("EYE", str(eye))
        .replace("TWICE", str((2 * torch.eye(4)).tolist()))
        .replace("FAR", str(eye).replace("0.0]", "1e300]", 1))
        .replace("DIGITS", "9" * 400)
    )
    with pytest.raises(ValueError, match=match):
        read_cameras(tmp_path / "t.json", (8, 8))


def test_pictures_without_a_background_are_refused(program: typer.Typer, tmp_path: Path) -> None:
    Image.new("RGB", (16, 16), (20, 20, 20)).save(tmp_path / "dark.png")
    for command in (["fit-mesh", str(tmp_path), *SMALL], ["fit-camera", "box", str(tmp_path / "dark.png")]):
        with pytest.raises(ValueError, match=r"dark.png: no background is known"):
            CliRunner().invoke(program, [*command, "--out", str(tmp_path / "run")], catch_exceptions=False)


def test_numbers_in_names_count(tmp_path: Path) -> None:
    names = ["view10.png", "view2.png", "a.png", "view1.png"]
    for name in names:
        (tmp_path / name).touch()
    assert [path.name for path in picture_files(tmp_path)] == [
        "a.png",
        "view1.png",
        "view2.png",
        "view10.png",
    ]


@pytest.mark.parametrize("option", ["--fov", "--elevation"])
def test_angles_that_are_none_are_refused(program: typer.Typer, option: str, tmp_path: Path) -> None:
    out = ["--out", str(tmp_path / "a.png")]
    for value in ("nan", "inf", *(["0", "180"] if option == "--fov" else [])):
        result = CliRunner().invoke(program, ["render", "box", *out, option, value])
        assert str(result.exception).startswith(option)


def test_colours_of_a_fit_are_shown_without_light() -> None:
    """What stands below a picture is comparable with it: the mesh that it shows has its colours."""
    from algonet.cli.fitting_runs import thumbnail
    from algonet.render import icosphere

    ball = icosphere(2, 0.8)
    red = ball.replace(vertex_colors=torch.tensor([0.8, 0.2, 0.2]).expand(len(ball.vertices), 3))
    cameras = render_commands._circle(2, 20.0, 0.0, 60.0)
    shown = thumbnail(red, targets_of(red, cameras, 24, "rgb"))
    above, below = shown[:24], shown[24:]
    assert abs(above[12, 12].astype(int) - below[12, 12].astype(int)).max() < 30
    assert abs(above[12, 36].astype(int) - below[12, 36].astype(int)).max() < 30


def test_depth_is_drawn_without_a_rim(program: typer.Typer, tmp_path: Path) -> None:
    """A ball is nearest in its middle, where it is brightest; its outline, half background, is not near."""
    out = tmp_path / "depth.png"
    CliRunner().invoke(program, ["render", "icosphere", "--layer", "depth", "--size", "48", "--out", str(out)])
    with Image.open(out) as picture:
        row = [picture.convert("L").getpixel((x, 24)) for x in range(48)]
    assert row[24] > 200
    assert row[:24] == sorted(row[:24])


def test_an_interrupted_run_goes_on(program: typer.Typer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runner = CliRunner()
    arguments = ["fit-mesh", _views(program, tmp_path / "views"), *SMALL[2:], "--steps", "8", "--texture", "0"]
    whole = runner.invoke(program, [*arguments, "--out", str(tmp_path / "whole")])
    assert whole.exit_code == 0, whole.output
    step = MeshFitter.step

    def interrupted(self: MeshFitter) -> None:
        if self.taken == 5:
            raise KeyboardInterrupt
        step(self)

    monkeypatch.setattr(MeshFitter, "step", interrupted)
    stopped = runner.invoke(program, [*arguments, "--out", str(tmp_path / "run")])
    assert stopped.exit_code == 130
    assert "stopped at step 5 of 8" in stopped.output
    monkeypatch.setattr(MeshFitter, "step", step)
    other = runner.invoke(program, [*arguments, "--seed", "1", "--out", str(tmp_path / "run")])
    assert "other settings or pictures" in str(other.exception)
    again = runner.invoke(program, [*arguments, "--out", str(tmp_path / "run")])
    assert again.exit_code == 0, again.output
    assert "going on from step 5" in again.output
    assert not (tmp_path / "run" / "checkpoint.npz").exists()
    one, two = (Mesh.load(tmp_path / name / "mesh.obj") for name in ("whole", "run"))
    assert torch.equal(one.vertices, two.vertices)
    (tmp_path / "run" / "checkpoint.npz").write_bytes(b"no")
    broken = runner.invoke(program, [*arguments, "--out", str(tmp_path / "run")])
    assert "not readable as a checkpoint" in str(broken.exception)


def test_the_angle_of_view_is_that_of_cameras() -> None:
    """The number stands in the commands, whose help does not import the camera."""
    assert render_commands.DEFAULT_FOV == DEFAULT_FOV


def test_camera_command_finds_where_a_picture_was_taken(program: typer.Typer, tmp_path: Path) -> None:
    runner, picture = CliRunner(), tmp_path / "box.png"
    runner.invoke(program, ["render", "box", "--out", str(picture), "--size", "24"])
    run = tmp_path / "run"
    arguments = ["fit-camera", "box", str(picture), "--out", str(run), "--rotations", "16", "--size", "24"]
    result = runner.invoke(program, arguments)
    assert result.exit_code == 0, result.output
    assert {p.name for p in run.iterdir()} == {"cameras.json", "overlay.png", "report.json"}
    report = json.loads((run / "report.json").read_text())
    assert report[0]["picture"] == "box.png"
    assert report[0]["minima"][0]["degrees_from_best"] == pytest.approx(0, abs=0.1)
    names, cameras = read_cameras(run / "cameras.json", (24, 24))
    assert names == ["box.png"]
    assert cameras.batch_shape == (1,)


def test_views_of_a_folder_are_fitted_in_python_and_by_command(program: typer.Typer, tmp_path: Path) -> None:
    """`render --views` writes what `fit-mesh`, `Targets.load` and `Camera.load` read: the same cameras and pictures."""
    views, run = tmp_path / "views", tmp_path / "run"
    words = ["render", "torus", "--views", "5", "--size", "24", "--elevation", "40", "--out", str(views)]
    assert CliRunner().invoke(program, words).exit_code == 0
    assert sorted(path.name for path in views.iterdir()) == ["cameras.json", *(f"view00{i}.png" for i in range(5))]
    cameras = Camera.load(views / "cameras.json")
    assert torch.allclose(cameras.matrix, render_commands._circle(5, 40.0, 30.0, DEFAULT_FOV).matrix, atol=1e-4)
    targets = Targets.load(views, size=24)
    assert targets.size == (24, 24)
    assert torch.allclose(targets.cameras.matrix, cameras.matrix, atol=1e-5)
    given = Targets.load(views, cameras, size=24)
    assert torch.equal(given.rgb, targets.rgb)
    (views / "cameras.json").rename(tmp_path / "elsewhere.json")
    with pytest.raises(ValueError, match=r"holds no cameras.json or transforms.json; give `cameras`"):
        Targets.load(views)
    (tmp_path / "elsewhere.json").rename(views / "cameras.json")
    result = CliRunner().invoke(program, ["fit-mesh", str(views), "--quick", "--steps", "2", "--out", str(run)])
    assert result.exit_code == 0, result.output
    report = json.loads((run / "report.json").read_text())
    assert report["settings"]["size"] == 64
    assert report["notes"] == []
    # It began with the hull: a ring from the first step on
    mesh = Mesh.load(run / "mesh.obj")
    assert report["quality"]["open"] == 0
    assert len(mesh.faces) == report["quality"]["faces"]


def test_progress_on_a_pipe_is_a_line_with_the_time_left(monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    now = [0.0]
    monkeypatch.setattr("algonet.fit.progress.time.monotonic", lambda: now[0])
    with progress_of(100, "fitting", True, done=20) as advance:
        now[0] += 60.0  # the first step, which compiles kernels, does not count
        advance(1, "fitting")
        for _ in range(79):
            now[0] += 4.0
            advance(1, "fitting")
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "fitting: 22 of 100, about 5 min left"
    assert lines[-1].startswith("fitting: 100 of 100, about 0 s")
    assert 25 <= len(lines) <= 32
    with progress_of(100, "fitting", False) as advance:
        advance(1, "")
    assert capsys.readouterr().err == ""
