"""Numba kernels: `host` calls them, the device files are templates."""
