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
    # Tellers became free one after the other before the first customer came: who was idle longest is never a tie
    free = [float(t - tellers) for t in range(tellers)]
    now, waited = 0.0, 0.0
    for k in range(len(arrivals)):
        now = now + arrivals[k]
        first, start = 0, free[0]
        for t in range(1, tellers):
            if free[t] < start:
                first, start = t, free[t]
        if start > now:
            waited += start - now
        else:
            start = now
        free[first] = start + services[k]
    return waited / len(arrivals)
