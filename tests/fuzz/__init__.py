"""Fuzz targets: whatever stands in a file, reading it gives a result or a one-line error, soon and in little memory.

In the test run each target takes a fixed sample of a second or two. For a long, fresh one (from the repository's root):

PYTHONPATH=tests python -m fuzz --examples 20000
PYTHONPATH=tests python -m fuzz --examples 20000 -k mesh
"""
