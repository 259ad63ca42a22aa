"""Make `docs/experiments.md` from `experiments/results/*.json`, or list what there is to run.

python -m experiments            what there is
python -m experiments --page     make the page again
"""

from __future__ import annotations

import argparse
import ast
import pkgutil
from pathlib import Path

from algonet.core.files import write_text
from experiments import page

HERE = Path(__file__).parent


def names() -> list[str]:
    """The modules that measure something."""
    return sorted(m.name for m in pkgutil.iter_modules([str(HERE)]) if m.name not in ("harness", "page", "__main__"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--page", action="store_true", help="make docs/experiments.md again")
    if parser.parse_args().page:
        write_text(page.PAGE, page.markdown())
        return
    for name in names():
        said = ast.get_docstring(ast.parse((HERE / f"{name}.py").read_text(encoding="utf-8"))) or ""
        print(f"python -m experiments.{name:16} {said.splitlines()[0]}")


if __name__ == "__main__":
    main()
