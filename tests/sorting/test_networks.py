"""The tables: they sort, they prune to what matters, and short rows get exactly the network of their own length."""

import itertools

import pytest
import torch

from algonet.sorting import Bitonic, OddEven

NETWORKS = [OddEven(), Bitonic()]


def crisp(table, x, length=None):
    """Run the comparators crisply on the rows of x, those that a row of `length` items has."""
    x = x.clone()
    for layer in range(table.depth):
        span = slice(int(table.start[layer]), int(table.stop[layer]))
        for f, g, need in zip(*(t[span].tolist() for t in (table.first, table.second, table.need)), strict=True):
            if length is None or length >= max(need, int(table.layer_need[layer])):
                low, high = torch.minimum(x[:, f], x[:, g]), torch.maximum(x[:, f], x[:, g])
                x[:, f], x[:, g] = low, high
    return x


@pytest.mark.parametrize("network", NETWORKS, ids=str)
@pytest.mark.parametrize("n", [0, 1, 2, 3, 4, 5, 7, 8, 11])
def test_sorts_every_sequence_of_zeros_and_ones(network, n):
    # The zero-one principle: a network that sorts these sorts everything
    rows = torch.tensor(list(itertools.product([0.0, 1.0], repeat=n))).reshape(2**n, n)
    assert torch.equal(crisp(network.table(n), rows), rows.sort(-1).values)


@pytest.mark.parametrize("network", NETWORKS, ids=str)
def test_pairs_of_a_layer_are_disjoint(network):
    table = network.table(13)
    for layer in range(table.depth):
        first, second = table.layer(layer)
        assert (first < second).all()
        assert len(set(first.tolist()) | set(second.tolist())) == 2 * len(first)


@pytest.mark.parametrize("network", NETWORKS, ids=str)
@pytest.mark.parametrize("m", [0, 1, 2, 3, 5, 6])
def test_short_rows_have_the_network_of_their_length(network, m):
    n, shift = 11, 11 - m if network.right_aligned else 0
    table, own = network.table(n), network.table(m)
    found = []
    for layer in range(table.depth):
        span = slice(int(table.start[layer]), int(table.stop[layer]))
        for f, g, need in zip(*(t[span].tolist() for t in (table.first, table.second, table.need)), strict=True):
            if m >= max(need, int(table.layer_need[layer])):
                found.append((layer, f - shift, g - shift))
    expected = [(layer, *map(int, p)) for layer in range(own.depth) for p in zip(*own.layer(layer), strict=True)]
    assert sorted(found) == sorted(expected)


@pytest.mark.parametrize("network", NETWORKS, ids=str)
def test_pruned_network_computes_the_wanted_outputs_only(network):
    x = torch.randn(50, 9, generator=torch.Generator().manual_seed(0))
    pruned = network.table(9, keep=(4,))
    assert torch.equal(crisp(pruned, x)[:, 4], x.median(-1).values)
    assert pruned.count < network.table(9).count


def test_median_of_odd_even_needs_a_cone_of_exchanges():
    # Going back from output 4 of 9, the cone gains one place on either side per layer until it holds all
    reached, count = {4}, 0
    for layer in reversed(range(9)):
        pairs = [(i, i + 1) for i in range(layer % 2, 8, 2) if {i, i + 1} & reached]
        count += len(pairs)
        reached |= {i for pair in pairs for i in pair}
    assert OddEven().table(9, keep=(4,)).count == count == 30
    assert OddEven().table(9).count == 36


def test_counts():
    assert OddEven().table(16).count == 120
    assert OddEven().table(16, steps=3).depth == 3
    assert Bitonic().table(16).depth == 10
    assert Bitonic().table(16).count == 80
    assert Bitonic().table(1024).depth == 55


def test_tables_move():
    table = Bitonic().table(6).to("meta")
    assert table.first.device.type == "meta"
    assert table.depth == 6
