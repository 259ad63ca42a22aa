"""What may happen to a run: kills, damaged checkpoints, full disks, a lost process, a request to end."""

from __future__ import annotations

import errno
import json
import math
import os
import random
import shutil
import signal
import socket
import time

import pytest
import torch

from algonet.ran import CheckpointError, RANTrainer, checkpoints
from ran.toys import Discs, fork_toy, run_toy, settings, toy

#: `ALGONET_KILLS=100` makes the test of kills the long one.
KILLS = int(os.environ.get("ALGONET_KILLS", "4"))


def trainer(folder, model=None, **changes) -> RANTrainer:
    return RANTrainer(model or toy(), Discs(), settings(**changes), folder, progress=False)


def same(a, b) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


@pytest.mark.slow
def test_killed_at_any_moment_it_goes_on_where_it_was(tmp_path):
    """A checkpoint is written after every step, so that kills fall into writing as well as into training."""
    steps, pause = 1_000_000, random.Random(0)
    for _ in range(KILLS):
        process, hears = fork_toy(tmp_path / "killed", steps)
        for told in ("ready", "step"):  # a busy machine may take long to come that far
            assert hears.recv() == told
        time.sleep(pause.uniform(0.0, 0.3))
        process.kill()
        process.join()
        assert process.exitcode == -signal.SIGKILL
        # Whatever is there can be read
        for path in checkpoints.list_checkpoints(tmp_path / "killed" / "checkpoints"):
            assert math.isfinite(float(checkpoints.load_checkpoint(path).model["a2b.weight"].sum()))
    written = checkpoints.list_checkpoints(tmp_path / "killed" / "checkpoints")
    until = 4 + (checkpoints.newest_checkpoint(tmp_path / "killed").step if written else 0)
    # In processes like the killed ones: another number of threads would round differently
    for name in ("killed", "whole"):
        process, _ = fork_toy(tmp_path / name, steps, 4, 1, 1 if name == "killed" else until, until)
        process.join(600)
        assert process.exitcode == 0
    a, b = (checkpoints.newest_checkpoint(tmp_path / name) for name in ("killed", "whole"))
    assert a.step == b.step == until
    assert same(a.model, b.model)


@pytest.fixture(scope="module")
def run_of_three(tmp_path_factory):
    """A run with checkpoints of steps 2, 4 and 6."""
    folder = tmp_path_factory.mktemp("run")
    trainer(folder, steps=6, checkpoint_every=2, keep=3).fit()
    return folder


@pytest.mark.parametrize("name", ["state.json", "model.safetensors", "training.safetensors"])
@pytest.mark.parametrize("damage", ["truncated", "emptied", "flipped", "removed"])
def test_a_damaged_checkpoint_is_passed_over(run_of_three, tmp_path, name, damage):
    folder = tmp_path / "run"
    shutil.copytree(run_of_three, folder)
    broken = folder / "checkpoints" / "step-00000006" / name
    data = bytearray(broken.read_bytes())
    # The last byte of a tensor, or a digit in the text: nothing that a parser would notice
    place = data.index(b'"step": 6') + 8 if name == "state.json" else len(data) - 1
    data[place] ^= 1
    if damage == "removed":
        broken.unlink()
    else:
        broken.write_bytes({"truncated": data[: len(data) // 2], "emptied": b"", "flipped": bytes(data)}[damage])
    with pytest.raises(ValueError, match="step-00000006: the checkpoint cannot be read"):
        checkpoints.newest_checkpoint(broken.parent)
    again = trainer(folder, toy(seed=1), steps=6, checkpoint_every=2, keep=3)
    with pytest.warns(
        RuntimeWarning, match=r"step-00000006: the checkpoint cannot be read.*; the one before it is taken"
    ):
        again.fit(resume=True)
    assert same(
        again.model.state_dict(), checkpoints.load_checkpoint(run_of_three / "checkpoints" / "step-00000006").model
    )


def test_where_nothing_is_whole_the_reason_is_said(run_of_three, tmp_path):
    folder = tmp_path / "run"
    shutil.copytree(run_of_three, folder)
    for path in checkpoints.list_checkpoints(folder / "checkpoints"):
        (path / "model.safetensors").write_bytes(b"nothing")
    with (
        pytest.warns(RuntimeWarning, match="the one before it is taken"),
        pytest.raises(
            ValueError, match=r"step-00000002: the checkpoint cannot be read: model\.safetensors is not what"
        ),
    ):
        checkpoints.newest_checkpoint(folder)
    (folder / "checkpoints" / "step-00000006" / "model.safetensors").unlink()
    with pytest.raises(ValueError, match=r"model\.safetensors is missing"):
        checkpoints.load_checkpoint(folder / "checkpoints" / "step-00000006")
    with pytest.raises(ValueError, match="holds no checkpoint"):
        checkpoints.newest_checkpoint(tmp_path / "elsewhere")


def full_disk(monkeypatch, from_step: int) -> None:
    """From the checkpoint of `from_step` on, the disk takes half of a file and no more."""
    write = checkpoints._write

    def refuse(path, data):
        state = path.name == "state.json"
        if state or write_count[0] >= from_step:
            if write_count[0] >= from_step:
                path.write_bytes(data[: len(data) // 2])
                raise OSError(errno.ENOSPC, "No space left on device", str(path))
            write_count[0] += 2  # checkpoints are two steps apart
        write(path, data)

    write_count = [2]
    monkeypatch.setattr(checkpoints, "_write", refuse)


def test_a_full_disk_stops_the_run_and_the_last_whole_checkpoint_stays(tmp_path, monkeypatch):
    full_disk(monkeypatch, 4)
    run = trainer(tmp_path, steps=6, checkpoint_every=2)
    with pytest.raises(
        CheckpointError,
        match=r"step 4 could not be written to .*: No space left on device; the last whole one is step-00000002",
    ):
        run.fit()
    assert [path.name for path in (tmp_path / "checkpoints").iterdir()] == ["step-00000002"]
    monkeypatch.undo()
    again, whole = trainer(tmp_path, steps=6, checkpoint_every=2), trainer(tmp_path / "whole", steps=6)
    again.fit(resume=True)
    whole.fit()
    assert same(again.model.state_dict(), whole.model.state_dict())


def test_on_a_full_disk_training_can_go_on(tmp_path, monkeypatch):
    full_disk(monkeypatch, 4)
    run = trainer(tmp_path, steps=6, checkpoint_every=2, save_errors="continue")
    with pytest.warns(RuntimeWarning, match="could not be written") as warned:
        run.fit()
    assert len([w for w in warned if "could not be written" in str(w.message)]) == 2
    assert run.step == 6
    assert [path.name for path in (tmp_path / "checkpoints").iterdir()] == ["step-00000002"]


def test_a_folder_that_cannot_be_written_is_named(tmp_path):
    run = trainer(tmp_path, steps=4, checkpoint_every=2)

    def close(trainer, losses):
        if trainer.step == 3:  # even root cannot write into a folder that is a file
            shutil.rmtree(trainer.checkpoint_folder)
            trainer.checkpoint_folder.write_text("in the way")

    with pytest.raises(CheckpointError, match=r"step 4 could not be written to .*checkpoints: .*there is none yet"):
        run.fit(on_step=close)


def test_sigterm_saves_and_ends(tmp_path):
    process, hears = fork_toy(tmp_path, 100_000, 4, 1, 100_000)
    assert [hears.recv(), hears.recv()] == ["ready", "step"]
    process.terminate()
    process.join(600)
    assert process.exitcode == -signal.SIGTERM
    (path,) = checkpoints.list_checkpoints(tmp_path / "checkpoints")
    found = checkpoints.load_checkpoint(path)
    assert 0 < found.step < 100_000
    again = trainer(tmp_path, steps=found.step + 2)
    again.fit(resume=True)
    assert again.step == found.step + 2


def test_the_handler_of_before_comes_back(tmp_path):
    told = []
    before = signal.signal(signal.SIGTERM, lambda *_: told.append("passed on"))
    try:
        run = trainer(tmp_path, steps=6, checkpoint_every=100)
        run.fit(on_step=lambda t, _: os.kill(os.getpid(), signal.SIGTERM) if t.step == 2 else None)
        # The step in which it came is finished, and the next one notices
        assert run.step == 3
        assert checkpoints.newest_checkpoint(tmp_path).step == 3
        assert told == ["passed on"]
    finally:
        signal.signal(signal.SIGTERM, before)


@pytest.mark.slow
def test_when_one_of_two_processes_is_killed_the_other_ends_and_says_so(tmp_path):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    common = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    common |= {"TORCHELASTIC_RUN_ID": "toy", "GROUP_RANK": "0", "ROLE_RANK": "0"}
    processes = [
        run_toy(tmp_path, 100_000, 8, 1, 100_000, RANK=str(rank), LOCAL_RANK=str(rank), **common) for rank in (0, 1)
    ]
    try:
        for line in ("ready", "step"):
            assert processes[0].stdout.readline().startswith(line)
        processes[1].kill()
        _, error = processes[0].communicate(timeout=600)
        assert processes[0].returncode == 1
        assert "LostProcessError: RANTrainer: process 0 of 2 ends at step" in error
        assert "Start the run again with resume" in error
    finally:
        for process in processes:
            process.kill()
            process.communicate()


def test_checksums_cover_every_file(run_of_three):
    state = json.loads((run_of_three / "checkpoints" / "step-00000006" / "state.json").read_text())
    assert set(state["checksums"]) == {"state.json", "model.safetensors", "training.safetensors"}
