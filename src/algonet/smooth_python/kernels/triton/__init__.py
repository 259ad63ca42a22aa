"""Recorded programs on the GPU."""
