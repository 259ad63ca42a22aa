"""CPU kernels; private."""
