"""Generated kernels: one formula in several dialects, written to readable files and loaded like any module."""
