"""Kernels of the smooth raster and the chaos game; loaded on first use, tested against `reference.py`."""
