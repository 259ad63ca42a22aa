"""Triton kernels: `device.py` writes their source, `host.py` launches them."""
