"""A heater with two states, and a timetable for its thermostat."""

from __future__ import annotations

from algonet import smooth

#: Degrees that an hour of heating brings, the share of the difference that an hour loses, and what a degree too cold costs
#: an hour, beside a price of about 1 for an hour of heating.
POWER, LOSS, DISCOMFORT = 4.0, 0.12, 2.0


@smooth(steepness=4.0)
def thermostat(outside, settings, price, wanted):
    """What some days cost: heating, and being cold when somebody is at home. Which timetable is best?

    `outside`, `price` and `wanted` (None while nobody is at home) have an entry for every half hour; `settings` is the
    timetable, in equal parts of that time. The heater goes on half a degree below the setting and off above it.

    >>> round(thermostat.crisp([5.0] * 48, [20.0], [1.0] * 48, [20.0] * 48), 2)
    29.75
    """
    room, heating, cost = 17.0, 0.0, 0.0
    for k in range(len(outside)):
        setting = settings[k * len(settings) // len(outside)]
        if room < setting - 0.5:
            heating = 1.0
        elif room > setting:
            heating = 0.0
        room = room + 0.5 * (POWER * heating + LOSS * (outside[k] - room))
        cost = cost + 0.5 * price[k] * heating
        if wanted[k] is not None and room < wanted[k]:
            cost = cost + 0.5 * DISCOMFORT * (wanted[k] - room)
    return cost
