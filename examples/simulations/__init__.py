"""Programs people want smooth: simulations with decisions, each in plain Python, and the question each is asked."""

from .ball import bouncing_ball
from .epidemic import epidemic
from .inventory import inventory
from .thermostat import thermostat
from .tournament import knockout
from .traffic import traffic_lights

#: Every program by name, for tests, the gallery and the documentation.
PROGRAMS = {
    "bouncing_ball": bouncing_ball,
    "thermostat": thermostat,
    "inventory": inventory,
    "traffic_lights": traffic_lights,
    "epidemic": epidemic,
    "knockout": knockout,
}

__all__ = ["PROGRAMS", "bouncing_ball", "epidemic", "inventory", "knockout", "thermostat", "traffic_lights"]
