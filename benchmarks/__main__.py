"""Run every benchmark this machine can, and report what became worse than the committed figures.

    python -m benchmarks [--quick] [--keep] [NAME ...]

Each module's rows go to benchmarks/results/NAME.json with --keep; without it they are only compared with what is there.
"""

from __future__ import annotations

import argparse
import json
import pkgutil
import subprocess
import sys
import tempfile
from pathlib import Path

from algonet.files import write_text

HERE = Path(__file__).parent
RESULTS = HERE / "results"
#: A ratio may fall, or a time rise, by this factor before it is called a regression: timings are noisy.
SLACK = 1.5


def names() -> list[str]:
    return sorted(m.name for m in pkgutil.iter_modules([str(HERE)]) if m.name not in ("harness", "__main__"))


def regressions(old: dict, new: dict) -> list[str]:
    """What became worse, comparing ratios always and times only on the same machine."""
    before = {row["name"]: row for row in old["rows"]}
    same_machine = old["machine"] == new["machine"]
    found = []
    for row in new["rows"]:
        was = before.get(row["name"])
        if was is None or was["unit"] != row["unit"] or min(was["value"], row["value"]) <= 0:
            continue
        worse = was["value"] / row["value"] if row["unit"] == "ratio" else row["value"] / was["value"]
        if worse > SLACK and (row["unit"] != "ms" or same_machine):
            found.append(f"{row['name']}: {was['value']:.4g} -> {row['value']:.4g} {row['unit']}")
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--keep", action="store_true", help="record the figures as the new ones to compare with")
    options = parser.parse_args()
    unknown = set(options.names) - set(names())
    if unknown:
        parser.error(f"no benchmark named {', '.join(sorted(unknown))}; there are {', '.join(names())}")
    worse: list[str] = []
    with tempfile.TemporaryDirectory() as folder:
        for name in options.names or names():
            print(f"== {name}", flush=True)
            output = Path(folder) / f"{name}.json"
            command = [sys.executable, "-m", f"benchmarks.{name}", "--json", str(output)]
            done = subprocess.run([*command, *(["--quick"] if options.quick else [])], cwd=HERE.parent)
            if done.returncode or not output.exists():
                worse.append(f"{name}: the benchmark failed (exit code {done.returncode})")
                continue
            fresh, kept = json.loads(output.read_text()), RESULTS / f"{name}.json"
            if kept.exists():
                worse += regressions(json.loads(kept.read_text()), fresh)
            if options.keep:
                write_text(kept, json.dumps(fresh, indent=1) + "\n")
    print("\n".join(["", *(worse or ["no regressions"])]))
    return 1 if worse else 0


if __name__ == "__main__":
    sys.exit(main())
