"""What commands write: whole or absent, over nothing of the user's without --force, and never at the file system's root."""

from __future__ import annotations

import builtins
import errno
import os
from pathlib import Path
from typing import NamedTuple
from unittest import mock

import pytest
import typer

from algonet import cli
from algonet.apps.paper import FIGURES
from algonet.core import files

MESH = [".", "--steps", "1", "--size", "8", "--level", "0", "--texture", "16"]


class Row(NamedTuple):
    """A command that writes, and what it writes; the word OUT stands for the place."""

    words: list[str]
    out: str
    written: list[str]


TABLE = [
    Row(["demo", "--quick"], "page", ["page/index.html"]),
    Row(["ifs", "fit", "leaf.png", "--quick"], "new", ["new/leaf.json", "new/leaf.png", "new/leaf.gif"]),
    Row(["ifs", "render", "fern", "--size", "8", "--points", "50"], "fern.png", ["fern.png"]),
    Row(["while", "plot", "add", "--size", "2"], "add.png", ["add.png"]),
    Row(["paper"], "figures", [f"figures/{name.replace(' ', '_')}.png" for name in FIGURES]),
    Row(["render", "box", "--size", "8", "--backend", "reference"], "box.png", ["box.png"]),
    Row(["render", "box", "--size", "8", "--backend", "reference", "--views", "2"], "box.gif", ["box.gif"]),
    Row(
        ["fit-mesh", *MESH],
        "run",
        ["run/mesh.obj", "run/mesh.mtl", "run/mesh.png", "run/fit.gif", "run/report.json", "run/progress.png"],
    ),
    Row(["fit-mesh", *MESH], "ball.glb", ["ball.glb", "ball/fit.gif", "ball/report.json", "ball/progress.png"]),
    Row(
        ["fit-camera", "box", "leaf.png", "--size", "8"],
        "run",
        ["run/cameras.json", "run/overlay.png", "run/report.json"],
    ),
    Row(["speech", "say", "a", "--rate", "8"], "a.wav", ["a.wav", "a.png"]),
    Row(["ran", "init", "cpu"], "run.toml", ["run.toml"]),
    Row(["ran", "reconstruct", "checkpoint", "leaf.png"], "found", ["found/leaf.json", "found/leaf.png"]),
]
each_command = pytest.mark.parametrize("row", TABLE, ids=lambda row: f"{' '.join(row.words[:2])} {row.out}")


def _content(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_every_command_that_writes_is_in_the_table():
    waiting, found = [((), typer.main.get_command(cli.mount()))], set()
    for words, command in waiting:
        waiting += [((*words, name), inner) for name, inner in getattr(command, "commands", {}).items()]
        options = {name for parameter in command.params for name in parameter.opts}
        if "--out" in options:
            found.add(words)
            assert ("--force" in options) != (words == ("ran", "train")), words
    # A run's folder is only continued: tests/ran
    assert found - {("ran", "train")} == {tuple(row.words[: 2 if row.words[0] in cli.GROUPS else 1]) for row in TABLE}


@each_command
def test_writes_all_and_overwrites_nothing_without_force(run, tmp_path, row):
    code, err = run(*row.words, "--out", row.out)
    assert code == 0, err
    first = _content(tmp_path)
    assert set(first) == {"leaf.png", *row.written}
    # One after the other is the only one there
    for name in row.written:
        for other in row.written:
            (tmp_path / other).unlink(missing_ok=True)
        (tmp_path / name).write_bytes(b"the user's")
        code, err = run(*row.words, "--out", row.out)
        assert code == 1, name
        assert err == f"algonet: {name}: exists; choose another name, or --force to overwrite it.\n"
        assert _content(tmp_path) == {"leaf.png": first["leaf.png"], name: b"the user's"}
    code, err = run(*row.words, "--out", row.out, "--force")
    assert code == 0, err
    assert _content(tmp_path)[row.written[-1]] != b"the user's"


def _full_disk(file, mode: str = "r", **options):
    """`open`, but what is written through a descriptor loses its last byte to a full disk."""
    opened = builtins.open(file, mode, **options)  # noqa: SIM115 (the caller closes it)
    if mode != "wb":
        return opened
    write = opened.write

    def full(data: bytes) -> int:
        write(data[:-1])
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    stand_in = mock.MagicMock(wraps=opened)
    stand_in.write = full
    stand_in.__enter__.return_value = stand_in
    stand_in.__exit__.side_effect = lambda *_: opened.close()
    return stand_in


@each_command
def test_a_full_disk_leaves_what_was_there(run, tmp_path, monkeypatch, row):
    """No room for the last byte of any result; the user's files of these names are as they were."""
    for name in row.written:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"the user's")
    before = _content(tmp_path)
    monkeypatch.setattr(files, "open", _full_disk, raising=False)
    code, err = run(*row.words, "--out", row.out, "--force")
    assert code == 1
    assert err.startswith("algonet: ")
    assert err.endswith(": No space left on device.\n")
    assert err.count("\n") == 1
    assert _content(tmp_path) == before


@each_command
def test_no_folder_is_made_at_the_root(run, tmp_path, row):
    place = Path(tmp_path.anchor) / "algonet-nowhere"
    code, err = run(*row.words, "--out", str(place / row.out))
    assert code == 1
    assert "no such folder, and none is made at the root of the file system" in err
    assert err.count("\n") == 1
    assert not place.exists()
    assert set(_content(tmp_path)) == {"leaf.png"}


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["ifs", "fit", "leaf.png", "--out", "."], "leaf.png"),
        (["ifs", "render", "leaf.json", "--out", "leaf.json"], "leaf.json"),
        (["while", "plot", "leaf.while", "--out", "leaf.while"], "leaf.while"),
        (["ran", "reconstruct", "checkpoint", "leaf.png", "--out", "."], "leaf.png"),
    ],
    ids=lambda value: " ".join(value[:2]) if isinstance(value, list) else "",
)
def test_what_is_read_is_never_overwritten(run, tmp_path, words, named):
    (tmp_path / "leaf.json").write_text("{}")
    (tmp_path / "leaf.while").write_text("x0 := x1")
    before = _content(tmp_path)
    code, err = run(*words, "--force")
    assert (code, err) == (1, f"algonet: {named}: is what is read; choose another --out.\n")
    assert _content(tmp_path) == before


def test_two_inputs_of_one_name_are_refused(run, tmp_path):
    (tmp_path / "more").mkdir()
    (tmp_path / "more" / "leaf.png").write_bytes((tmp_path / "leaf.png").read_bytes())
    code, err = run("ran", "reconstruct", "checkpoint", "leaf.png", "more/leaf.png", "--out", "found")
    assert code == 1
    assert "two results would get this name" in err
    assert not (tmp_path / "found").exists()


def test_training_keeps_out_of_another_ones_folder(run, tmp_path):
    assert run("ran", "init", "ifs", "--out", "run.toml")[0] == 0
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "pictures.png").write_bytes(b"the user's")
    code, err = run("ran", "train", "run.toml", "--out", "mine", "--steps", "1")
    assert code == 1
    assert "pictures.png: exists" in err
    code, err = run("ran", "train", "run.toml", "--out", "/algonet-nowhere/run", "--steps", "1")
    assert code == 1
    assert "none is made at the root" in err
