"""Recorded programs as compiled kernels: one interpreter of instructions, generated for the relaxations in use."""
