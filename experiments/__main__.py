"""Make `docs/experiments.md` from `experiments/results/*.json`, or list what there is to run.

python -m experiments                          what there is
python -m experiments --page                   make the page again
python -m experiments --join NAME FILE ...     make the record of an experiment from parts that ran side by side
"""

from __future__ import annotations

import argparse
import ast
import json
import pkgutil
from pathlib import Path

from algonet.core.files import write_text
from experiments import harness, page

HERE = Path(__file__).parent


def names() -> list[str]:
    """The modules that measure something."""
    return sorted(m.name for m in pkgutil.iter_modules([str(HERE)]) if m.name not in ("harness", "page", "__main__"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--page", action="store_true", help="make docs/experiments.md again")
    parser.add_argument(
        "--join",
        nargs="+",
        metavar=("NAME", "FILE"),
        help="make the record of NAME (or NAME_cpu) from the JSON files of its parts",
    )
    options = parser.parse_args()
    if options.join:
        name, *files = options.join
        if name.removesuffix("_cpu") not in names() or not files:
            parser.error(f"--join takes one of {', '.join(names())} and JSON files, got {' '.join(options.join)}")
        content = harness.join([json.loads(Path(file).read_text(encoding="utf-8")) for file in files])
        write_text(page.RESULTS / f"{name}.json", json.dumps(content, indent=1) + "\n")
        return
    if options.page:
        write_text(page.PAGE, page.markdown())
        return
    for name in names():
        said = ast.get_docstring(ast.parse((HERE / f"{name}.py").read_text(encoding="utf-8"))) or ""
        print(f"python -m experiments.{name:16} {said.splitlines()[0]}")


if __name__ == "__main__":
    main()
