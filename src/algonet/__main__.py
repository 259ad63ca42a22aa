"""The `algonet` command; `python -m algonet` is the same."""

from __future__ import annotations

import sys

from algonet.core.extras import require


def main() -> None:
    """Run the command, or say which extra brings it."""
    try:
        require("typer", "rich")
    except ImportError as error:
        sys.exit(f"algonet: {error}")
    from algonet.cli import main as run

    run()


if __name__ == "__main__":
    main()
