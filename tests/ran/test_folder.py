"""A user's own pictures and sounds."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from PIL import Image
from typer.testing import CliRunner

from algonet.cli.ran_commands import app
from algonet.ran import build_data, build_trainer
from algonet.ran.build import figures, lines
from algonet.ran.config import from_dict
from algonet.ran.data import Folder, read_views, split_of
from algonet.speech import SmoothSynthesizer, write_wav

SMALL = {
    "model": {"level": 1, "width": 16, "base": 4, "translator_base": 4},
    "loss": {"separately": False},
    "train": {"steps": 2, "batch": 2, "wait": 0, "accelerator": "cpu", "tensorboard": False},
}


def paint(path, width=32, height=16, seed=0):
    random = np.random.default_rng(seed)
    Image.fromarray(random.integers(0, 255, (height, width, 3), dtype=np.uint8)).save(path)


@pytest.fixture
def folder(tmp_path):
    """Forty pictures of two views each, a text file, and a hidden file."""
    place = tmp_path / "pictures"
    place.mkdir()
    for index in range(40):
        paint(place / f"shape-{index:02d}.png", seed=index)
    (place / "notes.txt").write_text("not a picture")
    (place / ".hidden.png").write_text("not a picture either")
    return place


def read(path):
    return read_views(path, 16, 2)


def test_names_share_files_out(folder):
    parts = {split: Folder(folder, read, split=split) for split in ("train", "validation", "test")}
    names = {split: {path.name for path in data.files} for split, data in parts.items()}
    assert sum(map(len, names.values())) == 40 == len(set.union(*names.values()))
    assert len(names["train"]) > 20
    assert all(split_of(name) == split for split, some in names.items() for name in some)
    item = parts["train"][0]
    assert list(item) == ["a"]
    assert item["a"].shape == (3, 16, 32)
    # Another file moves no other one
    paint(folder / "new.png")
    again = {path.name for path in Folder(folder, read, split="train").files}
    assert again - {"new.png"} == names["train"]


def test_folders_inside_say_what_is_what(folder):
    for split in ("train", "test"):
        (folder / split).mkdir()
    (folder / "shape-00.png").rename(folder / "test" / "shape-00.png")
    (folder / "shape-01.png").rename(folder / "train" / "shape-01.png")
    assert [path.name for path in Folder(folder, read, split="train").files] == ["shape-01.png"]
    assert [path.name for path in Folder(folder, read, split="test").files] == ["shape-00.png"]
    with pytest.raises(ValueError, match="holds no validation files that can be used"):
        Folder(folder, read, split="validation")


def test_bad_files_are_named_and_skipped_or_refused(folder):
    (folder / "train").mkdir()
    for name in ("a.png", "b.png"):
        paint(folder / "train" / name)
    (folder / "train" / "broken.png").write_bytes(b"\x89PNG nothing")
    paint(folder / "train" / "square.png", 16, 16)
    with pytest.warns(
        RuntimeWarning, match=r"passed over: .*broken\.png: not readable as a picture.*square\.png: this model"
    ):
        data = Folder(folder, read)
    assert [path.name for path in data.files] == ["a.png", "b.png"]
    with pytest.raises(ValueError, match=r"broken\.png: not readable as a picture.* \(and 1 more\); remove it, or set"):
        Folder(folder, read, bad_files="refuse")
    with pytest.raises(ValueError, match="nowhere is not a folder"):
        Folder(folder / "nowhere", read)


@pytest.mark.parametrize("views", [1, 2])
@pytest.mark.parametrize("kind", ["mesh", "ifs"])
def test_a_run_on_a_folder(tmp_path, kind, views):
    if kind == "ifs" and views == 2:
        pytest.skip("function systems are seen from one side")
    place = tmp_path / "pictures"
    place.mkdir()
    for index in range(30):
        paint(place / f"{index}.png", 16 * views, 16, seed=index)
    config = from_dict({"kind": kind, **SMALL, "data": {"size": 16, "views": views, "folder": str(place)}})
    trainer = build_trainer(config, tmp_path / "run", progress=False)
    trainer.fit()
    line, *_ = lines(figures(trainer.model, config))
    assert "apart" in line
    with pytest.raises(ValueError, match="`method` 'supervised' needs the truth"):
        from_dict({**SMALL, "method": "supervised", "data": {"folder": str(place)}})


def test_a_folder_of_sounds(tmp_path):
    synthesizer = SmoothSynthesizer(phonemes="a i")
    for split in ("train", "test"):
        for index, text in enumerate(["a", "i", "a"]):
            sound = synthesizer(*synthesizer.score(text, pitch=100 + 20 * index)).waveform
            write_wav(tmp_path / "sounds" / split / f"{index}.wav", sound, 16_000)
    config = from_dict({"kind": "speech", **SMALL, "data": {"size": 32, "folder": str(tmp_path / "sounds")}})
    data = build_data(config, "train")
    assert data[0]["a"].shape == (1, 32, 32)
    assert float((data[0]["a"] - data[1]["a"]).abs().mean()) > 0.05
    trainer = build_trainer(config, tmp_path / "run", progress=False)
    trainer.fit()
    assert torch.isfinite(next(trainer.model.parameters())).all()


def test_the_command_trains_on_a_folder(folder, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    text = (
        f'kind = "mesh"\n[data]\nsize = 16\nviews = 2\nfolder = "{folder}"\n[model]\nlevel = 1\nwidth = 16\nbase = 4\n'
    )
    text += '[loss]\nseparately = false\n[train]\nsteps = 1\nbatch = 2\naccelerator = "cpu"\ntensorboard = false\n'
    (tmp_path / "run.toml").write_text(text)
    done = CliRunner().invoke(app, ["train", "run.toml", "--out", "run"], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    assert "apart" in done.output
