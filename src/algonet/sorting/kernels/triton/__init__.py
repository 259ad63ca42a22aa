"""GPU kernels; private."""
