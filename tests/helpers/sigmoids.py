"""Sigmoids for tests that compile a kernel for each, which takes seconds."""

from __future__ import annotations

from algonet.relax import Cauchy, Gaussian, GumbelMax, GumbelMin, Heaviside, Laplace, Logistic, Reciprocal, SmoothStep

#: Light and heavy tails, tails that end, a kink, a step, and no symmetry: what solvers and sums may be sensitive to. The
#: formulas of all sigmoids are compared in every dialect by `core.test_codegen`.
KERNEL_SIGMOIDS = (Logistic, Gaussian, Cauchy, Reciprocal, Laplace, SmoothStep, GumbelMin, GumbelMax, Heaviside)
