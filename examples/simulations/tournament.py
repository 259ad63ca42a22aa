"""A knockout tournament."""

from __future__ import annotations

from algonet import smooth


@smooth(steepness=2.0)
def knockout(skill, luck):
    """How many matches each player wins. Which skills explain the results of past tournaments?

    Neighbours in the list `skill` (a power of two players) meet, then the winners; `luck` has an entry for each match, which
    the upper one of the two must make up for.

    >>> knockout.crisp([1.0, 3.0, 2.0, 0.0], [0.5, 0.0, 0.3])
    [0.0, 2.0, 1.0, 0.0]
    """
    best = [skill[k] for k in range(len(skill))]
    still, wins = [1.0 for _ in best], [0.0 for _ in best]
    match, size = 0, 1
    while len(best) > 1:
        through = []
        for k in range(0, len(best), 2):
            upper, stronger = 0.0, best[k + 1]
            if best[k] - best[k + 1] > luck[match]:
                upper, stronger = 1.0, best[k]
            through.append(stronger)
            match += 1
            # Everybody in this half of the list is out but for who came through
            for player in range(k * size, (k + 1) * size):
                still[player] = still[player] * upper
                still[player + size] = still[player + size] * (1.0 - upper)
        wins = [wins[player] + still[player] for player in range(len(skill))]
        best, size = list(through), 2 * size
    return wins
