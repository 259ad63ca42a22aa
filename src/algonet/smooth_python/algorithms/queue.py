"""Customers queueing for the tellers of a bank."""

from __future__ import annotations

from ..decorator import smooth


@smooth
def bank_queue(arrivals, services, tellers):
    """How long customers wait on average, served in order of arrival by whichever teller is free first.

    `arrivals` are times between arrivals, `services` how long each customer takes, `tellers` an integer: what would
    another teller, or a faster one, change?

    >>> bank_queue.crisp([0.0, 1.0, 1.0], [5.0, 2.0, 2.0], 2)
    0.3333333333333333
    """
    now, waited = 0.0, 0.0
    # When each teller will be free, the earliest first
    free = [0.0 for _ in range(tellers)]
    for k in range(len(arrivals)):
        now = now + arrivals[k]
        start = max(now, free[0])
        waited += start - now
        free[0] = start + services[k]
        for t in range(tellers - 1):
            if free[t] > free[t + 1]:
                free[t], free[t + 1] = free[t + 1], free[t]
    return waited / len(arrivals)
