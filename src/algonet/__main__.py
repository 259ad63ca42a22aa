"""`python -m algonet` is the `algonet` command."""

from algonet.cli import main

main()
