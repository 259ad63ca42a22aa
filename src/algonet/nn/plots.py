"""Drawings of smooth graphs: nodes in order from left to right, connections as strong as their gates."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from algonet.core.extras import require

from .topology import INPUT, OUTPUT, Connection

#: Gates below this are not drawn.
INVISIBLE = 0.02


def draw_connections(axis: Any, connections: Sequence[Connection], *, node_colour: str = "#1f4e79") -> None:
    """Draw the graph of `connections` on a matplotlib axis; nodes that nothing leads to the output from are grey."""
    require("matplotlib")
    from matplotlib.patches import FancyArrowPatch

    names = [INPUT, *dict.fromkeys(c.target for c in connections)]
    place = {name: i for i, name in enumerate(names)}
    used = _leading_to_output(connections)
    for source, target, gate in connections:
        if gate < INVISIBLE:
            continue
        start, end = place[source], place[target]
        # Neighbours by a straight line, others by an arc: odd distances above, even ones below
        distance = end - start
        bend = 0.0 if distance == 1 else (-1 if distance % 2 else 1) * min(0.45, 1.3 / distance)
        colour = "#d1495b" if target in used and source in used else "#8a93a0"
        axis.add_patch(
            FancyArrowPatch(
                (start, 0),
                (end, 0),
                connectionstyle=f"arc3,rad={bend}",
                arrowstyle="-|>",
                mutation_scale=11,
                shrinkA=22,
                shrinkB=22,
                lw=0.4 + 2.2 * gate,
                alpha=0.15 + 0.85 * gate,
                color=colour,
            )
        )
    for name, x in place.items():
        colour = node_colour if name in used else "#b9c0c9"
        box = {"boxstyle": "round,pad=0.45", "fc": colour, "ec": "none"}
        axis.text(x, 0, name, ha="center", va="center", color="white", fontsize=9, bbox=box)
    axis.set_xlim(-0.7, len(names) - 0.3)
    axis.set_ylim(-0.9, 0.9)
    axis.set_axis_off()


def _leading_to_output(connections: Sequence[Connection]) -> set[str]:
    used = {OUTPUT}
    for source, target, gate in reversed(connections):
        if gate >= 0.5 and target in used:
            used.add(source)
    return used
