"""Template of the Triton kernels of soft counts over pairs; `source.py` puts a sigmoid's `gate` and `chance` before it.

A program holds ITEMS items and meets all others, OTHERS at a time.
"""

# pyright: reportAttributeAccessIssue=false, reportAssignmentType=false, reportOperatorIssue=false
import triton
import triton.language as tl

from algonet.core.codegen.triton_math import kernel


@triton.jit
def gate(z):
    """Replaced by the sigmoid's formula: (value, slope) at the scaled argument."""
    return z, z


@triton.jit
def chance(z):
    """Replaced by the sigmoid's value alone."""
    return z


#: Whether r(-z) = 1 - r(z).
SYMMETRIC = tl.constexpr(True)

# --- template ---


@triton.jit
def difference(a, b):
    """a - b; 0 for equal infinities."""
    return tl.where(a == b, 0.0, a - b)


@triton.jit
def scaled(d, s):
    """s d within +-1e18, where every sigmoid is flat."""
    z = s * d
    z = tl.where(z > 1e18, 1e18, z)
    return tl.where(z < -1e18, -1e18, z).to(d.dtype)


@triton.jit
def decided(d, s):
    """r(s d), crisp where the difference is infinite."""
    value = chance(scaled(d, s)).to(d.dtype)
    infinite = (d == d) & (d - d != 0)
    return tl.where(infinite, tl.where(d > 0, 1.0, 0.0), value).to(d.dtype)


@triton.jit
def rise(d, s):
    z = scaled(d, s)
    value, slope = gate(z)  # noqa: RUF059
    return tl.where(tl.abs(z) < 1e18, slope, 0.0).to(d.dtype)


@triton.jit
def chosen(w_i, w_j, ORDERED: tl.constexpr):
    """v_ij: the weight of j for i."""
    if ORDERED:
        v = tl.where(w_i > w_j, 1.0, 0.0).to(w_i.dtype)
    else:
        v = w_j + tl.zeros_like(w_i)
    return v


@kernel
def pairwise_forward_kernel(
    x_ptr, w_ptr, steepness_ptr, out_ptr, n, blocks, ORDERED: tl.constexpr, ITEMS: tl.constexpr, OTHERS: tl.constexpr
):
    pid = tl.program_id(0)
    row = (pid // blocks).to(tl.int64)
    i = pid % blocks * ITEMS + tl.arange(0, ITEMS)
    s = tl.load(steepness_ptr)
    x_ptr += row * n
    w_ptr += row * n
    a = tl.load(x_ptr + i, mask=i < n, other=0.0)[:, None]
    y = tl.load(w_ptr + i, mask=i < n, other=0.0)[:, None]
    total = tl.zeros([ITEMS], tl.float64)
    for start in range(0, n, OTHERS):
        j = start + tl.arange(0, OTHERS)
        b = tl.load(x_ptr + j, mask=j < n, other=0.0)[None, :]
        w = tl.load(w_ptr + j, mask=j < n, other=0.0)[None, :]
        v = chosen(y, w, ORDERED)
        use = (j < n)[None, :] & (j[None, :] != i[:, None]) & (v != 0)
        total += tl.sum(tl.where(use, v * decided(difference(a, b), s), 0.0), 1).to(tl.float64)
    own = tl.load(x_ptr + i, mask=i < n, other=0.0)
    result = tl.where(own == own, total.to(own.dtype), own)
    tl.store(out_ptr + row * n + i, result, mask=i < n)


@kernel
def pairwise_backward_kernel(
    x_ptr, w_ptr, steepness_ptr, grad_ptr, grad_x_ptr, grad_w_ptr, grad_s_ptr, n, blocks,
    ORDERED: tl.constexpr, WEIGHTS: tl.constexpr, STEEP: tl.constexpr,
    ITEMS: tl.constexpr, OTHERS: tl.constexpr,
):  # fmt: skip
    """Each item collects what it feels as the first and as the second of its pairs."""
    pid = tl.program_id(0)
    row = (pid // blocks).to(tl.int64)
    i = pid % blocks * ITEMS + tl.arange(0, ITEMS)
    s = tl.load(steepness_ptr)
    x_ptr += row * n
    w_ptr += row * n
    grad_ptr += row * n
    a = tl.load(x_ptr + i, mask=i < n, other=0.0)[:, None]
    y = tl.load(w_ptr + i, mask=i < n, other=0.0)[:, None]
    g = tl.load(grad_ptr + i, mask=i < n, other=0.0)[:, None]
    by_x, by_w, by_s = tl.zeros([ITEMS], tl.float64), tl.zeros([ITEMS], tl.float64), tl.zeros([ITEMS], tl.float64)
    for start in range(0, n, OTHERS):
        j = start + tl.arange(0, OTHERS)
        b = tl.load(x_ptr + j, mask=j < n, other=0.0)[None, :]
        w = tl.load(w_ptr + j, mask=j < n, other=0.0)[None, :]
        h = tl.load(grad_ptr + j, mask=j < n, other=0.0)[None, :]
        pair = (j < n)[None, :] & (j[None, :] != i[:, None])
        d = difference(a, b)
        out = rise(d, s)
        back = out if SYMMETRIC else rise(-d, s)
        v = chosen(y, w, ORDERED)
        u = chosen(w, y, ORDERED)
        first = tl.where(pair & (v != 0) & (out != 0), g * v * out, 0.0)
        second = tl.where(pair & (u != 0) & (back != 0), h * u * back, 0.0)
        by_x += tl.sum(first - second, 1).to(tl.float64)
        if STEEP:
            by_s += tl.sum(tl.where(first != 0, first * d, 0.0), 1).to(tl.float64)
        if WEIGHTS:
            by_w += tl.sum(tl.where(pair, h * decided(-d, s), 0.0), 1).to(tl.float64)
    kind = grad_x_ptr.dtype.element_ty
    # Infinite items take part crisply: ties among them have no slope
    own = tl.load(x_ptr + i, mask=i < n, other=0.0)
    by_x = tl.where((own - own != 0) & (own == own), 0.0, by_x)
    tl.store(grad_x_ptr + row * n + i, (by_x * s.to(tl.float64)).to(kind), mask=i < n)
    if WEIGHTS:
        tl.store(grad_w_ptr + row * n + i, by_w.to(kind), mask=i < n)
    if STEEP:
        tl.store(grad_s_ptr + pid, tl.sum(tl.where(i < n, by_s, 0.0), 0))
