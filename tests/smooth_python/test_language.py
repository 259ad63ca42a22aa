"""Each construct of the language: steep runs equal the function as written, on one item, on a batch, and recorded."""

from __future__ import annotations

import math

import pytest
import torch

from algonet.relax import Logistic
from algonet.smooth_python import smooth

SCALE = 3.0
TABLE = torch.tensor([2.0, 4.0, 8.0], dtype=torch.float64)


@smooth
def if_else(x, y):
    if x > y:
        z = x
    else:
        z = y * 2
    return z


@smooth
def elif_chain(x, y):
    if x < -1:
        z = -10.0
    elif x < 0:
        z = -1.0
    elif x < 1:
        z = 1.0 + y
    else:
        z = 10.0
    return z


@smooth
def only_one_branch_assigns(x, y):
    best = y
    if x > y:
        best = x
    return best


@smooth
def else_reads_what_then_overwrote(x, y):
    t = 5.0
    if x > 0:
        t = y
        z = t + 1
    else:
        z = t - 1
    return z


@smooth
def nested(x, y):
    z = 0.0
    if x > 0:
        if y > 0:
            z = 1.0
        else:
            z += 2.0
    elif y > 0:
        z = 3.0
    return z


@smooth
def conditional_expression(x, y):
    return (x if x > y else y) + (1.0 if y > 0 else -1.0)


@smooth
def boolean_operators(x, y):
    a = 1.0 if x > 0 and y > 0 else 0.0
    b = 1.0 if x > 0 or y > 0 else 0.0
    c = 1.0 if not x > 0 else 0.0
    d = 1.0 if x > 0 and not (y > 0 or x > 1) else 0.0
    return a, b, c, d


@smooth
def chained(x, y):
    return 1.0 if -1 < x + y <= x * x + 0.3 < 4 else 0.0


@smooth
def flags(x, y):
    positive = x > 0
    both = positive and y > 0
    result = 0.0
    if both:
        result = 1.0
    if not positive:
        result = 2.0
    return result


@smooth
def flag_becomes_probability(x, y):
    found = False
    if x > 0:
        found = True
    if found:
        return y
    return -y


@smooth
def early_return(x, y):
    if x > 1:
        return x
    y = y + 1
    if y > 1:
        return y
    return x - y


@smooth
def return_inside_both(x, y):
    if x > y:
        return x, y
    return y, x


@smooth
def while_loop(x, y):
    count = 0.0
    while x > 0:
        x = x - 1
        count += 1
    return count, x


@smooth
def while_with_crisp_counter(x, y):
    n = 0
    while n < 3:
        if x > 0:
            x = x - 0.7
        n += 1
    return x + n


@smooth
def while_counts_an_integer(x, y):
    n = 0
    while x > 0:
        x = x - 1
        n = n + 1
    return n


@smooth
def while_else(x, y):
    z = 0.0
    while x > 0:
        x = x - 1
        if x > y + 1:
            z = 100.0
            break
    else:
        z = z + 7.0
    return z + x


@smooth
def while_true_return(x, y):
    k = 0.0
    while True:
        if x < k:
            return k
        k += 1


@smooth
def continue_skips(x, y):
    total = 0.0
    for k in range(5):
        if x < k:
            continue
        if y > k:
            total += 0.5
            continue
        total += 1.0
    return total


@smooth
def break_stops(x, y):
    total = 0.0
    for k in range(6):
        if x < k:
            break
        total = total + k
    return total


@smooth
def break_keeps_the_loop_variable(x, y):
    for k in range(1, 7):
        if x < k:
            break
    return k


@smooth
def for_else(x, y):
    z = 0.0
    for k in range(3):
        if x < k - 1:
            break
        z += 1.0
    else:
        z += 10.0
    return z


@smooth
def nested_loops_with_break(x, y):
    total = 0.0
    for i in range(3):
        for j in range(3):
            if x + y < i + j:
                break
            total += 1.0
        if total > 4.5:
            break
    return total


@smooth
def return_from_nested_loops(x, y):
    for i in range(3):
        for j in range(3):
            if x < i + 0.5 * j:
                return i + 10.0 * j
    return -1.0


@smooth
def while_inside_branch(x, y):
    z = 0.0
    if y > 0:
        while x > 0:
            x = x - 1
            z += 1
    else:
        z = -1.0
    return z


@smooth
def augmented(x, y):
    z = x
    z += y
    z *= 2
    z -= 1
    z /= 4
    z **= 2
    return z


@smooth
def builtins(x, y):
    return max(x, y), min(x, y, 0.3), abs(x), sum([x, y, 1.0]), max([x, y])


@smooth
def lists(x, y):
    a = [0.0, x, y]
    if x > y:
        a[0] = x
        a[1], a[2] = a[2], a[1]
    a[2] += 1.0
    b = []
    for v in a:
        b.append(v * 2)
    return b


@smooth
def nested_lists(x, y):
    grid = [[0.0 for _ in range(2)] for _ in range(2)]
    for i in range(2):
        for j in range(2):
            if x > i - j:
                grid[i][j] = y + i
            else:
                grid[i][j] += 1
    return grid[0][0] + grid[0][1] * 2 + grid[1][0] * 3 + grid[1][1] * 4


@smooth
def slices(x, y):
    a = [x, y, x + y, 1.0]
    b = a[1:3] + a[:1]
    if x > y:
        b[0] = -1.0
    return b


@smooth
def dictionaries(x, y):
    d = {"a": x, "b": 1.0}
    if y > 0:
        d["b"] = x + y
    return d["a"] * d["b"]


@smooth
def tuples_and_unpacking(x, y):
    pair = (x, y)
    if x > y:
        pair = (y, x)
    low, high = pair
    (a, b), *rest = (low, high), 1.0, 2.0
    return a - b, rest[1]


@smooth
def zip_and_enumerate(x, y):
    total = 0.0
    for k, (a, b) in enumerate(zip([x, y], [y, 1.0], strict=True)):
        if a > b:
            total += k + 1.0
    return total


@smooth
def comprehension(x, y):
    return sum([max(v, 0.0) for v in [x, y, 1.0] if True])


@smooth
def any_and_all(x, y):
    a = 1.0 if any([x > 0, y > 0]) else 0.0
    b = 1.0 if all([x > 0, y > 0, True]) else 0.0
    return a, b


@smooth
def math_functions(x, y):
    slice = math.exp(x / 4) + math.atan2(y, 3.0)
    items = [x, y, slice]
    return sum(items[1:]) + math.sqrt(2.0)


@smooth
def crisp_conditions_are_free(x, y, n=3, name="up", nothing=None):
    if n == 3 and name in ("up", "down") and nothing is None:
        x = x + 1
    if n > 5 or not name:
        x = undefined_name  # noqa: F821
    return x


@smooth
def globals_and_closures(x, y):
    return SCALE * x + math.pi * y + TABLE[1]


@smooth
def calls_another(x, y):
    if only_one_branch_assigns(x, y) > 0:
        return if_else(x, y)
    return early_return(y, x)


@smooth
def power(x, n):
    if n == 0:
        return 1.0
    return x * power(x, n - 1)


@smooth
def recursion_on_a_tensor(x, y):
    return x if x < 1 else recursion_on_a_tensor(x - 1, y)


@smooth
def membership(x, y):
    return 1.0 if round(x) in (0.0, 1.0) else 0.0


@smooth
def annotated(x: float, y: float) -> float:
    """Docstrings and annotations do not matter."""
    z: float = x
    w: float
    assert SCALE > 0, "crisp"
    w = z if z > y else y
    return w


PROGRAMS = [
    *(if_else, elif_chain, only_one_branch_assigns, else_reads_what_then_overwrote, nested, conditional_expression),
    *(boolean_operators, chained, flags, flag_becomes_probability, early_return, return_inside_both, while_loop),
    *(while_with_crisp_counter, while_counts_an_integer, while_else, while_true_return, continue_skips, break_stops),
    *(break_keeps_the_loop_variable, for_else, nested_loops_with_break, return_from_nested_loops, while_inside_branch),
    *(augmented, builtins, lists, nested_lists, slices, dictionaries, tuples_and_unpacking, zip_and_enumerate),
    *(
        any_and_all,
        math_functions,
        comprehension,
        crisp_conditions_are_free,
        globals_and_closures,
        calls_another,
        recursion_on_a_tensor,
        annotated,
    ),
]
#: Off every threshold of the programs above, on both sides of each.
POINTS = [(x + 0.217, y - 0.141) for x in (-2.0, -1.0, 0.0, 1.0, 2.0, 3.0) for y in (-2.0, 0.0, 1.0, 2.0)]


def numbers(result) -> list[float]:
    leaves = torch.utils._pytree.tree_leaves(result)
    return [float(leaf) for leaf in leaves]


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda p: p.__name__)
def test_steep_runs_equal_python(program):
    points = torch.tensor(POINTS, dtype=torch.float64)
    expected = [numbers(program.crisp(x, y)) for x, y in POINTS]
    for backend in ("auto", "numba", "reference"):
        batch = program(*points.unbind(1), batched=True, steepness=1e3, backend=backend)
        columns = [leaf.tolist() for leaf in torch.utils._pytree.tree_leaves(batch) if isinstance(leaf, torch.Tensor)]
        constants = [leaf for leaf in torch.utils._pytree.tree_leaves(batch) if not isinstance(leaf, torch.Tensor)]
        if not constants:
            for k, row in enumerate(expected):
                assert [column[k] for column in columns] == pytest.approx(row, abs=1e-5), f"{backend} at {POINTS[k]}"


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda p: p.__name__)
def test_one_item_is_an_item_of_a_batch(program):
    points = torch.tensor(POINTS[3:7], dtype=torch.float64)
    soft = {"relax": Logistic(3.0)}
    batch = [
        leaf
        for leaf in torch.utils._pytree.tree_leaves(program(*points.unbind(1), batched=True, **soft))
        if isinstance(leaf, torch.Tensor)
    ]
    for k, (x, y) in enumerate(points):
        one = [
            leaf for leaf in torch.utils._pytree.tree_leaves(program(x, y, **soft)) if isinstance(leaf, torch.Tensor)
        ]
        for a, b in zip(batch, one, strict=True):
            torch.testing.assert_close(a[k], b, atol=2e-5, rtol=2e-5)


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda p: p.__name__)
def test_soft_runs_are_differentiable(program):
    points = torch.tensor(POINTS[5:7], dtype=torch.float64, requires_grad=True)

    def run(p):
        found = program(p[:, 0], p[:, 1], batched=True, steepness=2.0, epsilon=1e-12)
        leaves = [leaf for leaf in torch.utils._pytree.tree_leaves(found) if isinstance(leaf, torch.Tensor)]
        return [leaf for leaf in leaves if leaf.requires_grad]

    if program is crisp_conditions_are_free or run(points):
        assert torch.autograd.gradcheck(lambda p: tuple(run(p)), (points,), atol=1e-4)


def test_recursion_on_an_integer():
    x = torch.tensor([2.0, -1.0])
    assert power(x, 3, batched=True).tolist() == [8.0, -1.0]


def test_keyword_arguments_and_defaults():
    x = torch.tensor(1.0)
    assert float(crisp_conditions_are_free(x, y=x, n=4)) == 1.0
    assert float(crisp_conditions_are_free(x, x)) == 2.0


def test_closures_are_read_when_called():
    factor = 2.0

    @smooth
    def scaled(x):
        return factor * x

    factor = 5.0
    assert float(scaled(torch.tensor(3.0))) == 15.0


def test_a_method_is_smooth_too():
    class Threshold(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.level = torch.nn.Parameter(torch.tensor(0.5))

        @smooth(steepness=4.0)
        def forward(self, x):
            if x > self.level:
                return 1.0
            return 0.0

    layer = Threshold()
    found = layer(torch.tensor([0.5, 9.0]), batched=True)
    found.sum().backward()
    assert found.tolist() == pytest.approx([0.5, 1.0])
    assert layer.level.grad == pytest.approx(-1.0)


def test_smooth_methods_call_each_other():
    class Gate:
        def __init__(self, level):
            self.level = level

        @smooth
        def passes(self, x):
            return 1.0 if x > self.level else 0.0

        @smooth
        def both(self, x, *, y):
            return self.passes(x) * self.passes(y)

    gate = Gate(0.5)
    x, y = torch.tensor([0.6, 0.2]), torch.tensor([0.7, 0.9])
    expected = torch.sigmoid(3 * (x - 0.5)) * torch.sigmoid(3 * (y - 0.5))
    torch.testing.assert_close(gate.both(x, y=y, batched=True, steepness=3.0), expected)


def test_modules_and_torch_functions_see_one_item():
    net = torch.nn.Linear(3, 2, dtype=torch.float64)

    @smooth
    def program(x):
        y = net(x)
        z = torch.exp(y).sum() + x.mean() * x.max(dim=0).values
        if z > 1:
            x = x * z
        return torch.stack([x[0], z]), torch.cat([x, y]), x @ x, y.shape[0], len(x), torch.outer(x, y).mT

    x = torch.randn(4, 3, dtype=torch.float64)
    batch = program(x, batched=True)
    for k in range(4):
        for whole, one in zip(batch, program(x[k]), strict=True):
            if isinstance(one, torch.Tensor):
                torch.testing.assert_close(whole[k], one)
            else:
                assert whole == one


def test_tensors_are_read_and_written_by_slices_and_masks():
    @smooth
    def program(a, b):
        m = a * 1.0
        m[1:3] = b[0]
        m[0] = 7.0
        if b[0] > 0:
            m[-1] = b[1]
        m[3:] += 1.0
        c = a[::2].clone()
        c[torch.tensor([0])] = 5.0
        return m, a[1:], c, b[None, 0]

    a, b = torch.arange(5.0), torch.tensor([50.0, -3.0])
    for batched in (False, True):
        args = (a.expand(2, 5), b.expand(2, 2)) if batched else (a, b)
        m, tail, c, _ = program(*args, batched=batched)
        first = (m[0], tail[0], c[0]) if batched else (m, tail, c)
        assert first[0].tolist() == [7.0, 50.0, 50.0, 4.0, -2.0]
        assert first[1].tolist() == [1.0, 2.0, 3.0, 4.0]
        assert first[2].tolist() == [5.0, 2.0, 4.0]


def test_matrices_by_pairs_of_integers():
    @smooth
    def transposed(a):
        b = a * 0.0
        for i in range(2):
            for j in range(3):
                if a[i, j] > 0:
                    b[i, j] = a[i, j]
        return b

    a = torch.tensor([[1.0, -2.0, 3.0], [-4.0, 5.0, -6.0]], dtype=torch.float64)
    torch.testing.assert_close(transposed(a, steepness=1e3), a.relu())
    torch.testing.assert_close(transposed(a.expand(3, 2, 3), batched=True, steepness=1e3), a.relu().expand(3, 2, 3))


def test_conditions_on_whole_tensors_decide_elementwise():
    @smooth(steepness=2.0)
    def relu(x):
        if x > 0:
            y = x
        else:
            y = 0.0
        return y

    x = torch.randn(3, 4)
    torch.testing.assert_close(relu(x), x * torch.sigmoid(2 * x))
    torch.testing.assert_close(relu(x, batched=True), x * torch.sigmoid(2 * x))
