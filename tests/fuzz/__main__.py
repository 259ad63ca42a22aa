"""A long, fresh run of the fuzz targets: `PYTHONPATH=tests python -m fuzz --examples 20000 [-k mesh]`."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

import pytest

if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m fuzz", description=__doc__)
    parser.add_argument("--examples", type=int, default=5000, help="inputs per target (default: 5000)")
    parser.add_argument(
        "-k",
        dest="keyword",
        default="",
        help="only the targets whose names match, as in pytest, which gets all further options",
    )
    arguments, others = parser.parse_known_args()
    os.environ["ALGONET_FUZZ_EXAMPLES"] = str(arguments.examples)
    folder = str(Path(__file__).parent)
    sys.exit(pytest.main([folder, "-q", "-p", "no:cacheprovider", "-k", arguments.keyword, *others]))
