"""Files whose sizes lie take no more than a bounded amount of memory and time."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path


def test_readers_are_not_taken_in():
    """In a child, which a reader may bring down: each within 1 GiB of `RLIMIT_AS` and 10 seconds of computing."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(Path(__file__).parents[1]), *sys.path])}
    command = [sys.executable, "-X", "faulthandler", "-m", "fuzz.resources"]
    child = subprocess.run(command, env=environment, capture_output=True, text=True)
    wrong = [line for line in child.stdout.splitlines() if "WRONG" in line]
    assert child.returncode == 0, "\n".join(wrong) or f"{child.stdout[-300:]}\n{child.stderr[:1000]}"
    assert child.stdout.count(": refused, ") > 60
