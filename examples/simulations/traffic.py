"""Traffic lights along a street."""

from __future__ import annotations

from algonet import smooth

#: Cars that pass a green light in a step, and how many steps they drive to the next one.
FLOW, DRIVE = 1.0, 4


@smooth(steepness=3.0)
def traffic_lights(street, sides, green, red, first):
    """How long cars wait, all together. How long should each light be green, and when should it begin?

    `street` are the cars that enter the street in each step, `sides` those at each light's side road. While plan p is in force
    light k is green for the street for `green[p][k]` steps, for its side road for `red[p][k]`; `first[k]` steps ago it was
    switched. Plans change in equal times.

    >>> round(traffic_lights.crisp([0.4] * 30, [0.2], [[6.0]], [[4.0]], [0.0]), 1)
    28.6
    """
    lights = len(first)
    queue, side = [0.0 for _ in range(lights)], [0.0 for _ in range(lights)]
    timer, open_ = [first[k] for k in range(lights)], [1.0 for _ in range(lights)]
    roads, waiting = [[0.0 for _ in range(DRIVE)] for _ in range(lights)], 0.0
    for t in range(len(street)):
        arriving, plan = street[t], t * len(green) // len(street)
        for k in range(lights):
            queue[k] = queue[k] + arriving
            side[k] = side[k] + sides[k]
            passed = 0.0
            if open_[k]:
                passed = min(queue[k], FLOW)
                queue[k] = queue[k] - passed
            else:
                side[k] = side[k] - min(side[k], FLOW)
            waiting = waiting + queue[k] + side[k]
            arriving = roads[k][0]
            roads[k] = [*roads[k][1:], passed]
            timer[k] = timer[k] + 1.0
            limit = green[plan][k] if open_[k] else red[plan][k]
            if timer[k] > limit:
                timer[k] = timer[k] - limit
                open_[k] = 1.0 - open_[k]
    return waiting
