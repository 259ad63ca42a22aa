"""Run every test file in a process of its own: a file that passes only after another one is found here.

python tests/alone.py                       all files, with the kernel cache of the tests
python tests/alone.py tests/sorting -j 4    those of a folder, four at a time
python tests/alone.py --cold tests/ifs      each with an empty kernel cache, which it has to compile
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).parents[1]
#: What pytest answers where a file has nothing to run on this machine.
NOTHING = 5


def test_files(paths: list[Path]) -> list[Path]:
    found = [sorted(path.rglob("test_*.py")) if path.is_dir() else [path] for path in paths]
    return [file.resolve() for files in found for file in files]


def run(file: Path, cold: bool, options: list[str]) -> tuple[Path, bool, str]:
    """The file, whether it passes alone, and the last that it said."""
    begun = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        environment = {**os.environ, **({"ALGONET_CACHE": folder} if cold else {})}
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(file), *options]
        done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    passes = done.returncode in (0, NOTHING)
    said = done.stdout.strip().splitlines()[-1:] if passes else (done.stdout + done.stderr).splitlines()[-60:]
    print(f"{'passes' if passes else 'FAILS '} {file.relative_to(ROOT)} {time.monotonic() - begun:.0f} s", flush=True)
    return file, passes, "\n".join(said)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("paths", nargs="*", type=Path, default=[ROOT / "tests"], help="files or folders (default: all)")
    parser.add_argument("-j", "--jobs", type=int, default=1, help="files at a time")
    parser.add_argument("--cold", action="store_true", help="an empty kernel cache for each file")
    arguments, options = parser.parse_known_args()
    with ThreadPoolExecutor(arguments.jobs) as pool:
        results = list(pool.map(lambda file: run(file, arguments.cold, options), test_files(arguments.paths)))
    failing = [(file, said) for file, passes, said in results if not passes]
    for file, said in failing:
        print(f"\n{file.relative_to(ROOT)}\n{said}")
    print(f"{len(results) - len(failing)} of {len(results)} files pass alone")
    return int(bool(failing))


if __name__ == "__main__":
    sys.exit(main())
