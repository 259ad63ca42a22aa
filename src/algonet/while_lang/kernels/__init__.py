"""Kernels written by the compiler: Numba on the CPU, Triton on the GPU. Private; tested against reference.py."""
