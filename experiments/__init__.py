"""The recognised tables, by one command each: `python -m experiments.NAME [--quick] [--json FILE] [--data FOLDER]`."""
