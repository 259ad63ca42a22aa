"""Triton kernels: `host` launches them."""
