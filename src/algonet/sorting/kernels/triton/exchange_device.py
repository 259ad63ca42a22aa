"""Template of one exchange, for the Triton kernels of both networks: `source.py` puts the sigmoid before it."""

# pyright: reportAttributeAccessIssue=false, reportAssignmentType=false, reportOperatorIssue=false
import triton
import triton.language as tl

from algonet.core.codegen.triton_math import atan  # noqa: F401  (formulas may use it)


@triton.jit
def gate(z):
    """Replaced by the sigmoid's formula: (value, slope) at the scaled argument."""
    return z, z


@triton.jit
def chance(z):
    """Replaced by the sigmoid's value alone, where that is cheaper than `gate`."""
    return z


# --- template ---
@triton.jit
def clamp_inf(x):
    """x with the largest number for infinity: differences to it decide crisply, and 0 times it is 0."""
    if x.dtype == tl.float32:
        most = 3.4028234663852886e38
    else:
        most = 1.7976931348623157e308
    return tl.where(tl.abs(x) > most, tl.where(x > 0, most, -most).to(x.dtype), x)


@triton.jit
def restore_inf(x, infinite):
    """`clamp_inf` undone where there were infinite items."""
    if x.dtype == tl.float32:
        most = 3.4028234663852886e38
    else:
        most = 1.7976931348623157e308
    return tl.where((infinite > 0) & (tl.abs(x) >= most), x * 2.0, x)


@triton.jit
def finite_only(grad, x):
    """The gradient by x, 0 at infinite items: those take part crisply, whatever the ties among them left."""
    return tl.where((x - x != 0) & (x == x), 0.0, grad).to(grad.dtype)


@triton.jit
def infinities(x):
    """1 if an item is infinite, else 0."""
    return tl.max(((x - x != 0) & (x == x)).to(tl.int32))


@triton.jit
def share(d, active, steepness, LIGHT: tl.constexpr):
    """alpha: the probability that a, b with b - a = d are in order; 1 where they do not meet."""
    # Beyond 1e18 every sigmoid is flat; those with LIGHT tails come out as exactly 0 or 1 there by themselves
    z = tl.where(active, steepness * d, 2e18).to(d.dtype)
    alpha = chance(z)
    if not LIGHT:
        alpha = tl.where(tl.abs(z) > 1e18, tl.where(z > 0, 1.0, 0.0), alpha)
    return alpha.to(d.dtype)


@triton.jit
def decide(d, active, steepness, LIGHT: tl.constexpr):
    """(alpha, slope, d) of the exchange, see `_decide` in reference.py; slope and d are 0 where it is crisp."""
    z = tl.where(active, steepness * d, 2e18).to(d.dtype)
    alpha, slope = gate(z)
    crisp = tl.abs(z) > 1e18
    if not LIGHT:
        alpha = tl.where(crisp, tl.where(z > 0, 1.0, 0.0), alpha)
    return alpha.to(d.dtype), tl.where(crisp, 0.0, slope).to(d.dtype), tl.where(crisp, 0.0, d).to(d.dtype)


@triton.jit
def mixed(own, other, alpha):
    """What stays in place with probability alpha."""
    return alpha * own + (1.0 - alpha) * other
