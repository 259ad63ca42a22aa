"""Measured comparisons with the peers, on the workloads that the documentation names."""
