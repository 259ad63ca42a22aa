"""Files are whole or absent, and take the place of nothing unless told to."""

from __future__ import annotations

import errno
import os
import random
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from algonet.core import files
from algonet.core.files import check_folder, check_outputs, make_folder, write_bytes, write_files, write_text

SOURCE = Path(files.__file__).parents[2]
needs_posix = pytest.mark.skipif(os.name == "nt", reason="limits and permissions of POSIX")


def test_writes_into_new_folders_with_ordinary_permissions(tmp_path):
    path = write_text(tmp_path / "new" / "a.txt", "hello")
    plain = tmp_path / "plain.txt"
    plain.write_text("")
    assert path.read_text() == "hello"
    assert os.stat(path).st_mode == os.stat(plain).st_mode
    assert write_text(path, "again").read_text() == "again"
    assert os.listdir(path.parent) == ["a.txt"]


def test_all_or_none_on_a_full_disk(tmp_path, monkeypatch):
    """The second of three files finds no room: the first, complete by then, does not appear either."""
    old = write_bytes(tmp_path / "a.bin", b"old")
    complete = files._complete

    def full(target: Path, data: bytes, private: bool):
        if data == b"second":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(target))
        return complete(target, data, private)

    monkeypatch.setattr(files, "_complete", full)
    with pytest.raises(OSError, match="No space left") as caught:
        write_files({tmp_path / "a.bin": b"first", tmp_path / "b.bin": b"second", tmp_path / "c.bin": b"third"})
    assert caught.value.filename == str(tmp_path / "b.bin"), "the user knows this name"
    assert old.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["a.bin"]


def test_nothing_is_overwritten_unless_told_to(tmp_path):
    taken = write_bytes(tmp_path / "b.bin", b"old")
    with pytest.raises(FileExistsError, match="exists; choose another name, or --force"):
        write_files({tmp_path / "a.bin": b"new", taken: b"new"}, overwrite=False)
    assert taken.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["b.bin"], "the file that had its name already is taken back"
    os.symlink(tmp_path / "nowhere", tmp_path / "link")
    with pytest.raises(FileExistsError, match="exists; choose"):
        write_bytes(tmp_path / "link", b"new", overwrite=False)


def test_many_threads_write_one_name(tmp_path):
    """Whoever is last wins; nobody fails and nothing else is left."""
    path, contents = tmp_path / "a.bin", [bytes([i]) * 5000 for i in range(8)]
    running = [threading.Thread(target=lambda c=c: [write_bytes(path, c) for _ in range(20)]) for c in contents]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()
    assert path.read_bytes() in contents
    assert os.listdir(tmp_path) == ["a.bin"]


def test_a_killed_process_leaves_the_old_or_the_new_file(tmp_path):
    code = (
        f"import sys; sys.path.insert(0, {str(SOURCE)!r})\n"
        "from algonet.core.files import write_files\nfrom pathlib import Path\n"
        "print('begun', flush=True)\nn = 0\n"
        "while True:\n"
        "    n += 1; data = bytes([n % 256]) * 3_000_000\n"
        "    write_files({Path('a.bin'): data, Path('b.bin'): data})\n"
    )
    rng = random.Random(0)
    for _ in range(5):
        running = subprocess.Popen([sys.executable, "-c", code], cwd=tmp_path, stdout=subprocess.PIPE, text=True)
        assert running.stdout.readline() == "begun\n"
        time.sleep(rng.uniform(0.0, 0.1))
        running.kill()
        running.wait()
        running.stdout.close()
        for path in filter(Path.exists, (tmp_path / "a.bin", tmp_path / "b.bin")):
            data = path.read_bytes()
            assert (len(data), len(set(data))) == (3_000_000, 1)


@needs_posix
def test_a_file_system_that_takes_no_more(tmp_path):
    """A real limit of the system's, in the middle of a write."""
    code = (
        f"import sys, resource; sys.path.insert(0, {str(SOURCE)!r})\n"
        "from algonet.core.files import write_bytes\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))\n"
        "try: write_bytes('a.bin', bytes(5000))\n"
        "except OSError as error: print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert done.stdout.strip() == "[Errno 27] File too large: 'a.bin'", done.stderr
    assert os.listdir(tmp_path) == []


def test_outputs_are_checked_before_work(tmp_path):
    taken = write_bytes(tmp_path / "taken", b"")
    check_outputs([tmp_path / "a" / "b" / "c.png"])
    check_outputs([taken], force=True)
    assert os.listdir(tmp_path) == ["taken"], "checking makes nothing"
    for wrong, error, options in (
        ([taken], "taken: exists; choose another name, or --force", {}),
        ([taken], "is what is read", {"force": True, "inputs": [tmp_path / "." / "taken"]}),
        ([tmp_path / "a", tmp_path / "a"], "two results would get this name", {}),
        ([tmp_path], "is a folder; wanted the name of a file", {"force": True}),
        ([taken / "a.png"], "taken: a file is in the way", {}),
    ):
        with pytest.raises(OSError, match=error):
            check_outputs(wrong, **options)


@needs_posix
def test_devices_and_pipes_are_no_outputs(tmp_path):
    """To rename a file onto /dev/null would remove it, for whoever may."""
    os.mkfifo(tmp_path / "pipe")
    for path in (Path("/dev/null"), tmp_path / "pipe"):
        with pytest.raises(OSError, match="is no ordinary file"):
            check_outputs([path], force=True)
        with pytest.raises(OSError, match="is no ordinary file"):
            write_bytes(path, b"")


def test_no_folder_is_made_at_the_root():
    root = Path(Path.cwd().anchor)
    for call in (check_folder, make_folder, lambda path: write_bytes(path / "a.png", b"")):
        with pytest.raises(
            FileNotFoundError, match="algonet-nowhere: there is no such folder, and none is made at the"
        ):
            call(root / "algonet-nowhere" / "deeper")
    assert not (root / "algonet-nowhere").exists()


@pytest.mark.skipif(os.name == "nt" or os.geteuid() == 0, reason="root may write everywhere")
def test_folders_that_cannot_be_written_are_named(tmp_path):
    tmp_path.chmod(0o500)
    with pytest.raises(PermissionError, match="nothing may be written"):
        check_folder(tmp_path / "new")
