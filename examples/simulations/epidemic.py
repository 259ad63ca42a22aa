"""An epidemic on a small network of people."""

from __future__ import annotations

from algonet import smooth

#: How likely a sick neighbour infects within a round, and what a dose costs beside a person who falls sick.
RATE, DOSE = 0.35, 0.5


@smooth(steepness=30.0)
def epidemic(patient, luck, doses, contacts):
    """What an epidemic costs: people who fall sick, and vaccine. Who should be vaccinated?

    `patient[i]` is 1 for who is sick first; `luck[t][i]` is drawn from [0, 1] for each round and person; `doses[i]`, from 0 to
    1, is by how much a vaccine protects; `contacts[i]` lists the neighbours. Who is sick infects for one round.

    >>> epidemic.crisp([1.0, 0.0, 0.0], [[0.5, 0.1, 0.5], [0.5, 0.5, 0.3]], [0.0, 0.0, 0.0], [[1], [0, 2], [1]])
    3.0
    """
    people = len(contacts)
    sick = [patient[i] for i in range(people)]
    had = [patient[i] for i in range(people)]
    for t in range(len(luck)):
        fresh = [0.0 for _ in range(people)]
        for i in range(people):
            around, escape = 0.0, 1.0
            for j in contacts[i]:
                around = around + sick[j]
                escape = escape * (1.0 - RATE * sick[j])
            if around and not had[i] and luck[t][i] < (1.0 - escape) * (1.0 - doses[i]):
                fresh[i] = 1.0
        sick = list(fresh)
        had = [had[i] + sick[i] for i in range(people)]
    return sum(had) + DOSE * sum([doses[i] for i in range(people)])
