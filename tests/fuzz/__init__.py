"""Fuzz targets: whatever stands in a file, reading it gives a result or a one-line error, soon and in little memory; and
whatever is sorted, rendered, iterated or run, every way to compute it gives the same numbers and gradients.

In the test run each target takes a fixed sample of a few seconds. For a long, fresh one (from the repository's root):

PYTHONPATH=tests python -m fuzz --minutes 60
PYTHONPATH=tests python -m fuzz --minutes 60 -k sorts
PYTHONPATH=tests python -m fuzz --examples 20000 -k mesh

What fails is shrunk and shown as a snippet; numbers of cases and failures are told every minute.
"""
