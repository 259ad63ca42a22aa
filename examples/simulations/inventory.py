"""A shop that orders when its stock runs low."""

from __future__ import annotations

from algonet import smooth

#: What an order costs, a piece for every night, and a customer who leaves without one; days until an order arrives.
ORDER, NIGHT, LOST, LEAD = 12.0, 0.15, 4.0, 2


@smooth(steepness=1.0)
def inventory(demand, reorder, amount):
    """What a month costs: orders, storage and lost sales. When should it order, and how much, day by day?

    On a day whose stock (with what is on its way) is below `reorder`, it orders up to `amount` above that.

    >>> inventory.crisp([5.0] * 6, [10.0] * 6, [20.0] * 6)
    39.5
    """
    stock, coming, cost = 15.0, [0.0 for _ in range(LEAD)], 0.0
    for day in range(len(demand)):
        stock = stock + coming[0]
        coming = [*coming[1:], 0.0]
        position = stock + sum(coming)
        if position < reorder[day]:
            coming[LEAD - 1] = reorder[day] + amount[day] - position
            cost = cost + ORDER
        if stock < demand[day]:
            cost = cost + LOST * (demand[day] - stock)
            stock = 0.0
        else:
            stock = stock - demand[day]
        cost = cost + NIGHT * stock
    return cost
