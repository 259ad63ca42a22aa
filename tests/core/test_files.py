"""Files are whole or absent."""

from __future__ import annotations

import os

import pytest

from algonet.core.files import replacing, write_bytes, write_text


def test_writes_into_new_folders_with_ordinary_permissions(tmp_path):
    path = write_text(tmp_path / "new" / "a.txt", "hello")
    plain = tmp_path / "plain.txt"
    plain.write_text("")
    assert path.read_text() == "hello"
    assert os.stat(path).st_mode == os.stat(plain).st_mode


def test_failure_keeps_the_old_file_and_leaves_no_other(tmp_path):
    path = write_bytes(tmp_path / "a.bin", b"old")

    def fail_midway() -> None:
        with replacing(path) as temporary:
            temporary.write_bytes(b"half")
            raise RuntimeError("midway")

    with pytest.raises(RuntimeError, match="midway"):
        fail_midway()
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["a.bin"]
