"""Kernels of soft sorting: private, tested against reference.py."""
