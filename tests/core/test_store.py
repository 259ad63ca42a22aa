"""The folder of kernels is ours or not used; files that are not what they should be are written again; it stays small."""

from __future__ import annotations

import errno
import hmac
import os
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import pytest

from algonet.core.codegen import generate, numba_private, store

SOURCE = """
from algonet.core.codegen.jit import njit

@njit(cache=True)
def double(x):
    return 2 * x
"""
#: A process that compiles one small kernel, or finds it.
SCRIPT = textwrap.dedent(
    """
    import sys
    from algonet.core.codegen import generate
    module = generate.load("test", %r)
    assert module.double(21) == 42
    """
) % (SOURCE,)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder with spaces and letters beyond ASCII in its name."""
    path = tmp_path / "größe 好"
    monkeypatch.setenv("ALGONET_CACHE", str(path))
    monkeypatch.setattr(store, "_said", False)
    return path


def run(script: str = SCRIPT, **environment: str | None) -> subprocess.CompletedProcess[str]:
    env = {k: v for k, v in {**os.environ, **environment}.items() if v is not None}
    return subprocess.run([sys.executable, "-c", script], env=env, capture_output=True, text=True, timeout=300)


def contents(folder: Path) -> dict[str, tuple[int, bytes]]:
    return {p.name: (p.stat().st_ino, p.read_bytes()) for p in folder.iterdir() if p.is_file() and p.name != store._KEY}


def forget() -> None:
    for name in [name for name in sys.modules if name.startswith("algonet_generated_test_")]:
        del sys.modules[name]


def load() -> int:
    forget()
    return generate.load("test", SOURCE).double(21)


def test_the_second_process_compiles_nothing_and_damage_is_repaired(folder):
    assert load() == 42
    before = contents(folder)
    assert sorted(Path(name).suffix for name in before) == [".machine_code", ".py"]
    assert load() == 42
    assert contents(folder) == before, "found, not written again"
    for damage in ("truncate", "empty", "flip", "folder"):
        for path in [p for p in folder.iterdir() if p.suffix in (".py", ".machine_code")]:
            data = path.read_bytes()
            if damage == "folder":
                path.unlink()
                path.mkdir()
            else:
                middle = len(data) // 2
                flipped = data[:middle] + bytes([data[middle] ^ 4]) + data[middle + 1 :]
                path.write_bytes({"truncate": data[:middle], "empty": b"", "flip": flipped}[damage])
        assert load() == 42, damage
        after = contents(folder)
        assert {name: data for name, (_, data) in after.items() if name.endswith(".py")} == {
            name: data for name, (_, data) in before.items() if name.endswith(".py")
        }
        assert len(after) == 2, "the machine code is there again"


def test_machine_code_that_others_could_have_written_is_not_run(folder):
    """Files are private whatever the umask; one of another mode, owner or kernel, however well sealed, is made again."""
    folder.mkdir(mode=0o755)
    before = os.umask(0)
    try:
        assert load() == 42
        store.write_sealed("algonet_generated_a", b"a")
    finally:
        os.umask(before)
    assert {path.stat().st_mode & 0o777 for path in folder.iterdir() if path.is_file()} == {0o600}
    ours = folder / "algonet_generated_a"
    assert store.read_sealed(ours.name) == b"a"
    (folder / "algonet_generated_b").write_bytes(ours.read_bytes())
    (folder / "algonet_generated_b").chmod(0o600)
    assert store.read_sealed("algonet_generated_b") is None, "the seal is of another name"
    forged = hmac.digest(b"", b"algonet_generated_a\0bad", "sha256")  # all that is known without the key
    ours.write_bytes(forged + b"bad")
    assert store.read_sealed(ours.name) is None, "the seal needs the key"
    store.write_sealed(ours.name, b"a")
    (folder / store._KEY).chmod(0o644)
    assert store.read_sealed(ours.name) is None, "a key that others can read is made anew, and seals by it with it"
    store.write_sealed(ours.name, b"a")
    assert store.read_sealed(ours.name) == b"a"
    ours.chmod(0o666)
    assert store.read_sealed(ours.name) is None
    assert not ours.exists()
    store.write_sealed(ours.name, b"a")
    ours.rename(folder / "elsewhere")
    ours.symlink_to(folder / "elsewhere")
    assert store.read_sealed(ours.name) is None
    store.write_sealed(ours.name, b"a")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "getuid", lambda: 4242)
        assert store._chosen  # the folder was looked at before
        assert store.read_sealed(ours.name) is None


@pytest.mark.skipif(os.name == "nt", reason="permissions of POSIX")
def test_folders_are_private_whatever_the_umask(tmp_path, triton_unset, monkeypatch, capsys):
    """Those above too: one that others can write to would make the cache useless, and a home's .cache open to all."""
    monkeypatch.setenv("ALGONET_CACHE", str(tmp_path / "cache" / "algonet"))
    monkeypatch.setattr(store, "_said", False)
    before = os.umask(0)
    try:
        assert store.cache_folder() == tmp_path / "cache" / "algonet"
        store.guard_triton()
    finally:
        os.umask(before)
    assert {path.stat().st_mode & 0o777 for path in (tmp_path / "cache").rglob("*")} == {0o700}
    assert (tmp_path / "cache").stat().st_mode & 0o777 == 0o700
    assert not capsys.readouterr().err


def test_foreign_code_in_our_file_is_never_run(folder):
    assert load() == 42
    (path,) = folder.glob("*.py")
    path.write_text("raise SystemExit('stolen')\n")
    (Path(str(path)).parent / "__pycache__").mkdir(exist_ok=True)
    assert load() == 42
    assert path.read_text() == SOURCE


def test_a_folder_that_others_can_write_to_is_not_used(folder, capsys):
    folder.mkdir()
    folder.chmod(0o777)
    used = store.cache_folder()
    assert used != folder
    assert used.stat().st_mode & 0o077 == 0
    assert load() == 42
    assert not list(folder.iterdir())
    # A slow compilation may say so on a line of its own
    lines = [line for line in capsys.readouterr().err.splitlines() if "compiling" not in line]
    assert len(lines) == 1
    assert f"{folder} is not used: others can write to {folder}." in lines[0]


def test_a_folder_below_one_that_others_can_write_to_is_not_used(tmp_path, monkeypatch):
    shared = tmp_path / "shared"
    shared.mkdir()
    (shared / "ours").mkdir(mode=0o700)
    shared.chmod(0o777)
    assert f"others can write to {shared}" in str(store._why_not(shared / "ours"))
    shared.chmod(0o1777)  # sticky, like /tmp
    assert store._why_not(shared / "ours") is None
    monkeypatch.setattr(os, "getuid", lambda: 4242)
    assert "belongs to another user" in str(store._why_not(shared / "ours"))


def test_no_home_and_no_place(monkeypatch, capsys):
    for name in ("ALGONET_CACHE", "XDG_CACHE_HOME", "HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(os.path, "expanduser", lambda path: path)  # what Python does for a user without an entry
    monkeypatch.setattr(store, "_said", False)
    assert store.wanted_folder() is None
    assert store.cache_folder().is_dir()
    assert not Path("~").exists()
    monkeypatch.setenv("ALGONET_CACHE", "/proc/nowhere/algonet")
    assert load() == 42


def test_a_home_that_cannot_be_written(tmp_path):
    """A file stands where the cache folder's parent would be: refused to root too, unlike a folder without permissions."""
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / ".cache").write_text("not a folder")
    done = run(HOME=str(tmp_path / "home"), ALGONET_CACHE=None, XDG_CACHE_HOME=None, TMPDIR=str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert "later processes" not in done.stderr
    lines = [line for line in done.stderr.splitlines() if "compiling" not in line]
    assert len(lines) == 1
    assert f"{tmp_path / 'home' / '.cache' / 'algonet'} is not used: it cannot be made (" in lines[0]
    assert [p.name for p in tmp_path.iterdir()] == ["home"]  # the folder of the process went with it


def test_a_home_without_permissions(folder, monkeypatch, capsys):
    folder.mkdir()
    access = os.access
    monkeypatch.setattr(os, "access", lambda path, mode: Path(path) != folder and access(path, mode))
    assert store.cache_folder() != folder
    assert load() == 42
    assert f"{folder} is not used: it cannot be written to." in capsys.readouterr().err
    assert not list(folder.iterdir())


def test_a_disk_that_is_full(folder, monkeypatch, capsys):
    def full(path, data, private):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))

    monkeypatch.setattr(store, "write_bytes", full)
    assert load() == 42
    err = capsys.readouterr().err
    assert err.count("a kernel cannot be kept (No space left on device)") == 1
    assert not list(folder.iterdir())


def test_a_disk_without_room(folder):
    """No file can be written at all: the kernel is compiled and runs, and one line says so."""
    script = "import resource, signal\nsignal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
    script += "import algonet.core.codegen.jit\nresource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))\n" + SCRIPT
    if sys.platform != "linux":
        pytest.skip("needs limits on the size of files")
    # output goes through a pipe, which the limit does not concern
    done = run(script)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("algonet: a kernel cannot be kept (File too large)") == 1
    assert not [p for p in folder.iterdir() if p.stat().st_size]


#: Forked where everything is imported, and let go when all are there: they come to the folder at the same time.
EIGHT = textwrap.dedent(
    """
    import os
    from algonet.core.codegen import generate, jit
    children, (gate, held) = [], os.pipe()
    for _ in range(8):
        child = os.fork()
        if child == 0:
            os.close(held)
            os.read(gate, 1)
            exec(%r, {})
            os._exit(0)
        children.append(child)
    os.close(held)
    print([os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children])
    """
) % (SCRIPT,)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_eight_processes_at_once(folder):
    done = run(EIGHT, ALGONET_QUIET="1")
    assert done.stdout.splitlines()[-1:] == [str([0] * 8)], done.stderr[-2000:]
    assert sorted(Path(name).suffix for name in contents(folder)) == [".machine_code", ".py"]


def test_the_oldest_go_first(folder):
    for i in range(6):
        store.write_sealed(f"algonet_generated_{i}", bytes(1000))
        os.utime(folder / f"algonet_generated_{i}", (i, i))
    (folder / "of the user.txt").write_bytes(bytes(10000))
    os.utime(folder / "of the user.txt", (0, 0))
    assert store.read_sealed("algonet_generated_0") == bytes(1000)  # used just now
    assert store.prune(most=3500, now=True) == 3 * 1032
    assert sorted(p.name for p in folder.iterdir()) == [
        store._KEY, "algonet_generated_0", "algonet_generated_4", "algonet_generated_5", "of the user.txt",
    ]  # fmt: skip
    assert store.clear() == 3
    assert [p.name for p in folder.iterdir()] == ["of the user.txt"]


@pytest.fixture
def triton_unset(monkeypatch):
    # Set first, so that what the test leaves in the environment goes with it
    monkeypatch.setenv("TRITON_CACHE_DIR", "")
    monkeypatch.setattr(store, "_given_to_triton", None)


def test_triton_compiles_into_our_folder(folder, triton_unset):
    cache = pytest.importorskip("triton.runtime.cache")
    generate.load("test_triton", "import triton\nimport os\nFOLDER = os.environ['TRITON_CACHE_DIR']\n")
    found = cache.FileCacheManager("0123").cache_dir
    assert Path(found).parent == folder / "triton"
    assert (folder / "triton").stat().st_mode & 0o077 == 0
    store.guard_triton()
    assert os.environ["TRITON_CACHE_DIR"] == str(folder / "triton")


def test_a_folder_that_the_user_gave_triton_stays(folder, triton_unset, monkeypatch):
    monkeypatch.setenv("TRITON_CACHE_DIR", "/of/the/user")
    store.guard_triton()
    assert os.environ["TRITON_CACHE_DIR"] == "/of/the/user"
    assert not (folder / "triton").exists()


@pytest.mark.skipif(os.name == "nt", reason="permissions of POSIX")
def test_triton_does_not_run_what_others_could_have_written(folder, triton_unset, monkeypatch, capsys):
    monkeypatch.delenv("ALGONET_QUIET", raising=False)
    (folder / "triton").mkdir(parents=True)
    folder.chmod(0o700)
    for mode, reason in ((0o777, "others can write to"), (0o755, "others can enter it")):
        # What Triton makes inside is as open as the umask has it, so only a folder that is closed to others will do
        (folder / "triton").chmod(mode)
        monkeypatch.setattr(store, "_said", False)
        store.guard_triton()
        chosen = Path(os.environ["TRITON_CACHE_DIR"])
        assert chosen.parent == store.private_folder()
        assert chosen.stat().st_mode & 0o077 == 0
        assert capsys.readouterr().err.count(reason) == 1


def test_folders_of_triton_go_whole(folder):
    for i in range(3):
        place = folder / "triton" / f"kernel{i}"
        place.mkdir(parents=True)
        for name in ("a.cubin", "b.json"):
            (place / name).write_bytes(bytes(1000))
            os.utime(place / name, (i, i))
        os.utime(place, (i, i))
    assert store.prune(most=4500, now=True) == 2000
    assert sorted(p.name for p in (folder / "triton").iterdir()) == ["kernel1", "kernel2"]
    assert store.clear() == 2
    assert not list((folder / "triton").iterdir())


def test_whoever_waits_is_told_once(folder, monkeypatch, capsys):
    monkeypatch.setattr(numba_private, "PATIENCE", 0.01)
    monkeypatch.setattr(numba_private, "_TOLD", threading.Lock())
    monkeypatch.delenv("ALGONET_QUIET", raising=False)
    told, end = "", time.monotonic() + 300
    with numba_private.announced():
        while not told.endswith("\n") and time.monotonic() < end:
            time.sleep(0.01)
            told += capsys.readouterr().err
    assert told.count("compiling kernels, once") == 1
    assert str(folder) in told
    numba_private._tell()
    assert not capsys.readouterr().err, "told already"
    monkeypatch.setattr(numba_private, "_TOLD", threading.Lock())
    monkeypatch.setattr(numba_private, "PATIENCE", 300)
    with numba_private.announced():
        pass
    assert not capsys.readouterr().err, "it did not take long"
