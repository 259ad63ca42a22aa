"""Every command as a user would call it: help, wrong calls and inputs, outputs that cannot be written, Ctrl-C, completion."""

from __future__ import annotations

import importlib
import json
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
import time
import typing
from pathlib import Path
from typing import NamedTuple

import pytest
import typer
from PIL import Image

from algonet import cli
from algonet.cli import ran_commands
from algonet.core import memory

ALGONET = Path(sys.executable).with_name("algonet")


class Done(NamedTuple):
    code: int
    out: bytes
    err: str


@pytest.fixture
def algonet(monkeypatch, capfdbinary, tmp_path):
    """Run the command in this process, in an empty folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ALGONET_QUIET", "1")  # whether kernels are compiled is not what these tests are about
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def run(*arguments: object) -> Done:
        monkeypatch.setattr(sys, "argv", ["algonet", *map(str, arguments)])
        with pytest.raises(SystemExit) as stopped:
            cli.main()
        out, err = capfdbinary.readouterr()
        return Done(int(stopped.value.code or 0), out, err.decode())

    yield run
    for number, handler in handlers.items():
        signal.signal(number, handler)


def _commands() -> list[tuple[str, ...]]:
    """The words that call each command and each group."""
    found: list[tuple[str, ...]] = [()]
    tree = typer.main.get_command(cli.mount())
    waiting = [((name,), command) for name, command in tree.commands.items()]
    for words, command in waiting:
        found.append(words)
        waiting += [((*words, name), inner) for name, inner in getattr(command, "commands", {}).items()]
    return found


@pytest.mark.parametrize("words", _commands(), ids=" ".join)
def test_help_has_examples_that_name_the_command(algonet, words):
    done = algonet(*words, "--help")
    assert done.code == 0
    shown = done.out.decode()
    assert "<bool>" not in shown, "flags take no value"
    assert "-h" in shown.split()
    assert "Example" in shown
    assert " ".join(("algonet", *words)) in shown.rpartition("Example")[2]


def test_there_are_as_many_commands_as_documented():
    page = (Path(__file__).parents[2] / "docs" / "cli.md").read_text(encoding="utf-8")
    for words in _commands():
        if words and words != ("while",) and words != ("ifs",) and words != ("ran",):
            assert " ".join(("algonet", *words)) in page, f"docs/cli.md does not show `algonet {' '.join(words)}`"


@pytest.mark.parametrize(
    "arguments",
    [
        ["dmo"],
        ["--colour"],
        ["render"],
        ["while", "rn"],
        ["while", "plot", "add", "--size", "1"],
        ["while", "run", "add", "--max-iterations", "0"],
        ["ifs", "fit"],
        ["ifs", "fit", "a.png", "--functions", "many"],
        ["ifs", "fit", "a.png", "--restarts", "0"],
        ["ifs", "fit", "a.png", "--foreground", "red"],
        ["ifs", "render", "fern", "--points", "0"],
        ["render", "box", "--layer", "normals"],
        ["render", "box", "--views", "0"],
        ["render", "box", "--backend", "cuda"],
        ["fit-mesh", ".", "--level", "9"],
        ["ran", "reconstruct", "run"],
        ["ran", "train", "a.toml", "--steps", "0"],
    ],
    ids=" ".join,
)
def test_wrong_calls_exit_2(algonet, arguments):
    done = algonet(*arguments)
    assert done.code == 2
    assert "Traceback" not in done.err
    assert "Usage" in done.err


@pytest.fixture
def files(tmp_path):
    """Inputs with something wrong, and a file where a folder is wanted."""
    (tmp_path / "blocked").write_text("")
    (tmp_path / "broken.while").write_text("WHILE x1 DO")
    (tmp_path / "bytes.while").write_bytes(b"\xff\xfe\x00")
    (tmp_path / "broken.png").write_text("no picture")
    (tmp_path / "broken.json").write_text("{")
    (tmp_path / "broken.obj").write_text("v 0 0 0\nf 1 2 3\n")
    (tmp_path / "broken.toml").write_text("steps = ")
    (tmp_path / "unknown.toml").write_text("stepz = 3\n")
    (tmp_path / "pictures").mkdir()
    (tmp_path / "run").mkdir()
    Image.new("L", (32, 32), 99).save(tmp_path / "flat.png")
    return tmp_path


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["while", "show", "nowhere.while"], "nowhere.while"),
        (["while", "show", "broken.while"], "broken.while: line 1, column 10"),
        (["while", "show", "bytes.while"], "bytes.while is not a text file"),
        (["while", "show", "pictures"], "pictures"),
        (["while", "run", "add", "x1"], "x1=3"),
        (["while", "run", "add", "x1=one"], "must be a finite number"),
        (["while", "run", "add", "x1=1", "x1=2"], "given twice"),
        (["while", "run", "add", "y=1"], "y=1"),
        (["while", "run", "add", "x9=1"], "x9"),
        (["while", "run", "add", "--exit", "door"], "unknown --exit 'door'"),
        (["while", "run", "add", "--exit", "smooth:x"], "smooth:x"),
        (["while", "run", "add", "--output", "z"], "z"),
        (["while", "plot", "add", "--from", "3", "--to", "1"], "--from must lie below --to"),
        (["while", "plot", "add", "--out", "blocked/a.png"], "blocked"),
        (["while", "run", "add", "x1=nan"], "x1 must be a finite number, got 'nan'"),
        (["while", "run", "add", "x1=inf"], "x1 must be a finite number, got 'inf'"),
        (["while", "plot", "add", "--out", "a.jpg"], "a name that ends in .png, got 'a.jpg'"),
        (["ifs", "render", "fern", "--out", "fern.docx"], "a name that ends in .png, got 'fern.docx'"),
        (["speech", "say", "a", "--out", "a.mp3"], "a name that ends in .wav, got 'a.mp3'"),
        (["ifs", "fit", "nowhere.png"], "nowhere.png: there is no such file"),
        (["ifs", "fit", "broken.png"], "broken.png: not readable as a picture"),
        (["ifs", "fit", "flat.png"], "one brightness"),
        (["ifs", "fit", "flat.png", "--out", "blocked"], "blocked"),
        (["ifs", "render", "oak"], "oak"),
        (["ifs", "render", "broken.json", "--out", "new.png"], "broken.json: cannot read an iterated function system"),
        (["ifs", "render", "fern", "--size", "big"], "--size"),
        (["ifs", "render", "fern", "--size", "999999x999999"], "--size"),
        (["ifs", "render", "fern", "--sigma", "-1"], "sigma"),
        (["ifs", "render", "fern", "--size", "8", "--points", "10", "--out", "blocked/fern.png"], "blocked"),
        (["render", "nowhere.obj"], "nowhere.obj: there is no such file"),
        (["render", "broken.obj"], "broken.obj"),
        (["render", "box", "--out", "box.docx"], "box.docx"),
        (["render", "box", "--out", "blocked/box.png"], "blocked"),
        (["render", "box", "--scale", "0"], "scale"),
        (["render", "box", "--scale", "nan"], "scale"),
        (["render", "box", "--size", "0"], "--size"),
        (["render", "box", "--fov", "180"], "fov"),
        (["fit-mesh", "nowhere.obj"], "nowhere.obj is no folder of pictures"),
        (["fit-mesh", "pictures"], "holds no pictures"),
        (["fit-mesh", "pictures", "--out", "fit.txt"], "fit.txt"),
        (["fit-mesh", "pictures", "--out", "blocked/fit.obj"], "blocked"),
        (["ran", "train", "nowhere.toml"], "nowhere.toml"),
        (["ran", "train", "broken.toml"], "broken.toml: not valid TOML"),
        (["ran", "train", "unknown.toml"], "unknown.toml: config: unknown key `stepz`"),
        (["ran", "reconstruct", "run", "flat.png"], "run: holds no checkpoint"),
        (["demo", "--out", "blocked"], "blocked"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)  # fmt: skip
def test_wrong_inputs_are_one_line_and_exit_1(algonet, files, arguments, message):
    before = sorted(files.rglob("*"))
    done = algonet(*arguments)
    assert done.code == 1
    assert message in done.err
    assert done.err.startswith("algonet: ")
    # A mistake in a program is shown with its line and a caret below it
    assert len(done.err.strip().splitlines()) == (3 if "broken.while" in arguments else 1), done.err
    after = [path for path in files.rglob("*") if path.is_file()]
    assert set(after) <= set(before), "a failed command left a file behind"


def test_an_unforeseen_error_names_its_type_and_debug_shows_where(algonet, monkeypatch):
    def fail() -> None:
        raise RuntimeError("odd\nthing")

    monkeypatch.setattr(importlib.import_module("algonet.cli.doctor"), "print_report", fail)
    done = algonet("doctor")
    assert done.code == 1
    assert done.err.strip() == "algonet: RuntimeError: odd thing (run again with --debug to see where)"
    for arguments in (["--debug", "doctor"], ["doctor", "--debug"]):
        monkeypatch.setattr(sys, "argv", ["algonet", *arguments])
        with pytest.raises(RuntimeError):
            cli.main()


def test_commands_write_what_they_say(algonet, tmp_path):
    for arguments, path in (
        (["ifs", "render", "sierpinski", "--size", "24x16", "--points", "200", "-o", "new/a.png"], "new/a.png"),
        (["render", "box", "--size", "24x16", "--backend", "reference", "-o", "b.jpg"], "b.jpg"),
        (["while", "plot", "add", "--size", "3", "-o", "deep/er/c.png"], "deep/er/c.png"),
    ):
        done = algonet(*arguments)
        assert done.code == 0, done.err
        assert path in done.out.decode()
        with Image.open(tmp_path / path) as picture:
            picture.load()
            assert picture.size == (24, 16) or path.endswith("c.png")
    assert not list(tmp_path.rglob(".*")), "a temporary file was left"


def test_a_dash_is_standard_output(algonet, tmp_path):
    done = algonet("ifs", "render", "sierpinski", "--size", "8", "--points", "50", "--out", "-")
    assert done.code == 0, done.err
    assert done.out.startswith(b"\x89PNG")
    assert done.out.endswith(b"IEND\xaeB`\x82")
    assert list(tmp_path.iterdir()) == []


def test_version_and_lists(algonet):
    import algonet as package

    assert algonet("--version").out.decode().strip() == package.__version__
    assert b"multiply" in algonet("while", "list").out
    assert b"fern" in algonet("ifs", "list").out


@pytest.mark.slow
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_interrupted_work_leaves_nothing_behind(tmp_path, number, code):
    """Ctrl-C in the middle of a fit: no traceback, no file, the exit code that shells expect."""
    _disc(64).save(tmp_path / "ball.png")
    script = (
        "import sys, algonet.fit as ifs; from algonet import cli; fit = ifs.fit_ifs\n"
        "def told(*arguments, **options):\n"
        "    print('begun', flush=True)\n"
        "    while True:  # however late the signal comes\n"
        "        fit(*arguments, **options)\n"
        "ifs.fit_ifs = told; sys.argv = ['algonet', 'ifs', 'fit', 'ball.png', '--out', 'found']; cli.main()"
    )
    command = [sys.executable, "-c", script]
    running = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert running.stdout.readline() == "begun\n", running.stderr.read()
    time.sleep(1.0)
    running.send_signal(number)
    _, err = running.communicate(timeout=600)
    assert running.returncode == code, err
    assert "Traceback" not in err
    assert not (tmp_path / "found").exists()


@pytest.mark.skipif(not ALGONET.exists() or shutil.which("bash") is None, reason="needs the installed command and bash")
def test_shell_completion(tmp_path):
    """It is shown, it is installed, and it completes commands, names and choices."""
    environment = {
        **os.environ,
        "HOME": str(tmp_path),
        "SHELL": "/bin/bash",
        "PATH": f"{ALGONET.parent}:{os.environ['PATH']}",
    }

    def bash(script: str, **extra: str) -> str:
        # A second command keeps bash alive: it is the parent process that tells which shell is used
        done = subprocess.run(
            ["bash", "-c", f"{script}; true"], capture_output=True, text=True, env={**environment, **extra}, timeout=600
        )
        assert done.stderr == ""
        return done.stdout

    assert "_ALGONET_COMPLETE" in bash("algonet --show-completion")
    assert "installed" in bash("algonet --install-completion")
    assert "_ALGONET_COMPLETE" in (tmp_path / ".bash_completions" / "algonet.sh").read_text()

    def complete(line: str) -> list[str]:
        words = line.split(" ")
        found = bash("algonet", _ALGONET_COMPLETE="complete_bash", COMP_WORDS=line, COMP_CWORD=str(len(words) - 1))
        return found.split()

    assert {"while", "ifs", "ran", "render", "fit-mesh", "demo", "doctor"} <= set(complete("algonet "))
    assert complete("algonet while run mul") == ["multiply"]
    assert complete("algonet render tor") == ["torus"]
    assert "silhouette" in complete("algonet render box --layer s")


def test_help_does_not_load_torch():
    code = (
        "import sys; from algonet.cli import main; sys.argv = ['algonet', 'render', '--help']\n"
        "try:\n    main()\nexcept SystemExit:\n    assert 'torch' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr


# Results for programs


def test_json(algonet):
    found = json.loads(algonet("while", "run", "multiply", "x1=3", "x2=4", "--exit", "tent", "--json").out)
    assert found["outputs"]["x0"]["discrete"] == "12"
    assert found["outputs"]["x0"]["smooth"] == pytest.approx(12)
    assert set(found["outputs"]["x0"]["gradient"]) == {"x1", "x2"}
    assert "gcd" in json.loads(algonet("while", "list", "--json").out)
    assert json.loads(algonet("ifs", "list", "--json").out)["fern"]["functions"] == 4
    doctor = json.loads(algonet("doctor", "--json").out)
    assert doctor["versions"]["algonet"]
    assert None in doctor["operations"]["cpu"]["soft_sort"].values(), "something runs it"


def test_ran_init(algonet, tmp_path):
    from algonet.ran import load_config

    for name in ("cpu", "ifs"):
        done = algonet("ran", "init", name, "--out", f"{name}.toml")
        assert (done.code, load_config(tmp_path / f"{name}.toml").method) == (0, "ran")
    again = algonet("ran", "init", "cpu", "--out", "cpu.toml")
    assert again.code == 1
    assert "exists; choose another name, or --force" in again.err
    assert algonet("ran", "init", "cpu", "--out", "cpu.toml", "--force").code == 0
    assert "choose one of cpu, gpu, ifs, ifs_gpu" in algonet("ran", "init", "tpu").err


def _disc(side: int) -> Image.Image:
    """Shaded, on white."""
    return Image.radial_gradient("L").resize((side, side)).point(lambda grey: grey if grey < 160 else 255)


#: Commands that take minutes, and the function in which they spend them; only of one that was interrupted does it return False.
LONG = {
    "demo --out page": "algonet.apps.gallery.build",
    "fit-camera box ball.png --rotations 4000 --size 512": "algonet.fit.fit_camera",
    "fit-mesh . --steps 100000": "algonet.cli.fitting_runs.FitRun.advance",
    "ifs fit ball.png": "algonet.fit.fit_ifs",
    "ifs render fern --points 3000000 --size 4096 --sigma 60": "algonet.cli.ifs_commands._drawn",
    "play --no-show --port 18137": "algonet.apps.play.serve",
    "ran train run.toml": "algonet.ran.trainer.RANTrainer.fit",
    "render icosphere --size 1024 --views 1000 --out film.gif": "algonet.render.SmoothRenderer.forward",
    "speech say /" + 300 * "a" + "/": "algonet.speech.SmoothSynthesizer.forward",
    "while run forever.while --max-steps 1000000000000": "algonet.cli.while_commands._crisp",
}
#: Runs each command in a fork of one process, which has loaded all there is to load.
INTERRUPTED = """
import os, pkgutil, signal, sys, time
from algonet import cli
import algonet.cli.fitting_runs, algonet.apps.gallery, algonet.fit, algonet.ran.trainer, algonet.render, algonet.speech
cli.mount()
for words, place in eval(sys.stdin.read()).items():
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        owner, name = place.rsplit(".", 1)
        owner = pkgutil.resolve_name(owner)
        work = getattr(owner, name)
        def told(*arguments, **options):
            os.write(writing, b"!")
            while work(*arguments, **options) is not False:  # again and again: however late it comes, Ctrl-C finds it at work
                pass
        setattr(owner, name, told)
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        sys.argv = ["algonet", *words.split()]
        cli.main()
    os.close(writing)
    begun = os.read(reading, 1) == b"!"
    time.sleep(0.3)
    begin = time.monotonic()
    os.kill(child, signal.SIGINT)
    status = os.waitpid(child, 0)[1]
    print(begun, os.waitstatus_to_exitcode(status), time.monotonic() - begin, words[:30], sep="\\t", flush=True)
"""


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_ctrl_c_ends_every_long_command(tmp_path):
    """Within 2 s on an idle machine; the limit here is for a loaded one."""
    _disc(64).save(tmp_path / "ball.png")
    (tmp_path / "forever.while").write_text("x1 := 1\nWHILE x1 != 0 DO\n    x1 := x1 + 1\nEND\n")
    (tmp_path / "run.toml").write_text(ran_commands._config("cpu"))
    done = subprocess.run(
        [sys.executable, "-c", INTERRUPTED], input=repr(LONG), cwd=tmp_path, capture_output=True, text=True, timeout=600
    )
    rows = [line.split("\t") for line in done.stdout.splitlines()]
    assert len(rows) == len(LONG), done.stderr[-2000:]
    assert [row for row in rows if row[:2] != ["True", "130"]] == [], done.stderr[-2000:]
    assert max(float(row[2]) for row in rows) < 30, done.stdout
    assert "Traceback" not in done.stderr


#: More than anyone wants: each command that takes sizes -> how it says so.
ABSURD = [
    (["ifs", "render", "fern", "--size", "1000000"], r"--size: wanted between 1 and \d+ pixels"),
    (["ifs", "render", "fern", "--points", "100000000"], r"points .*would take [\d.]+ GiB"),
    (["render", "box", "--size", "999999x999999"], r"--size: wanted between 1 and \d+ pixels"),
    (["render", "box", "--size", "8192", "--views", "1000", "--out", "a.gif"], r"1000 views .*would take [\d.]+ GiB"),
    (
        ["fit-camera", "box", "leaf.png", "--rotations", "1" + 12 * "0"],
        r"1000000000000 rotations would take [\d.]+ TiB",
    ),
    (["speech", "say", "/" + "a" * 10**5 + "/", "--rate", "0.1"], r"an utterance of 250000\.0 seconds"),
]


@pytest.mark.parametrize(
    ("words", "said"), ABSURD, ids=lambda value: " ".join(value)[:40] if isinstance(value, list) else ""
)
def test_absurd_sizes_are_one_line_before_memory_is_taken(algonet, tmp_path, monkeypatch, words, said):
    """On a machine with 4 GiB left, so that none has enough."""
    _disc(32).save(tmp_path / "leaf.png")
    monkeypatch.setattr(memory, "free_memory", lambda device: 2**32)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    done = algonet(*words)
    assert done.code == 1
    assert done.err.count("\n") == 1
    assert re.search(said, done.err), done.err
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 2**20  # in KiB
    assert [p.name for p in tmp_path.iterdir()] == ["leaf.png"]


def test_whole_numbers_have_a_largest_one():
    """Or they cost memory that is checked, or time alone."""
    unbounded = {
        "fit_camera rotations", "train steps", "run max_iterations", "run max_steps", "plot max_iterations",
    }  # fmt: skip
    found = set()
    waiting = [cli.mount()]
    for app in waiting:
        waiting += [group.typer_instance for group in app.registered_groups]
        for command in app.registered_commands:
            for name, kind in typing.get_type_hints(command.callback, include_extras=True).items():
                whole = typing.get_origin(kind) is typing.Annotated and typing.get_args(kind)[0] in (int, int | None)
                if whole and name != "seed" and typing.get_args(kind)[1].max is None:
                    found.add(f"{command.callback.__name__} {name}")
    assert found == unbounded
