"""Numba kernels: `device.py` writes their source, `host.py` calls them."""
