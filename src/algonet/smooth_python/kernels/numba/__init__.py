"""Recorded programs on the CPU."""
