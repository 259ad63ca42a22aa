"""A long, fresh run of the fuzz targets.

PYTHONPATH=tests python -m fuzz --minutes 60 [-k sorts]      random sorts, scenes, systems and programs, one after the other
PYTHONPATH=tests python -m fuzz --examples 20000 [-k mesh]   every target, readers of files too, so many inputs each
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

import pytest


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m fuzz", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--examples", type=int, default=5000, help="inputs per target (default: 5000)")
    parser.add_argument("--minutes", type=float, help="run what compares numbers for so long, past every failure")
    parser.add_argument(
        "-k",
        dest="keyword",
        default="",
        help="only the targets whose names match, as in pytest, which gets all further options",
    )
    arguments, others = parser.parse_known_args()
    if arguments.minutes is not None:
        from .hunt import hunt
        from .targets import TARGETS

        chosen = [target for target in TARGETS if arguments.keyword.lower() in target.name.lower()]
        if not chosen or others:
            listed = ", ".join(repr(target.name) for target in TARGETS)
            parser.error(f"with --minutes, -k is a part of one of these names: {listed}")
        return int(hunt(chosen, arguments.minutes) > 0)
    os.environ["ALGONET_FUZZ_EXAMPLES"] = str(arguments.examples)
    folder = str(Path(__file__).parent)
    return pytest.main([folder, "-q", "-p", "no:cacheprovider", "-k", arguments.keyword, *others])


if __name__ == "__main__":
    sys.exit(main())
