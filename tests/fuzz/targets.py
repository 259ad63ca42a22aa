"""All that `python -m fuzz --minutes 60` compares."""

from __future__ import annotations

from typing import Any

from .hunt import Target
from .scenes import Scenes
from .smooth_programs import SmoothPrograms
from .sorts import Sorts
from .systems import Systems
from .while_programs import WhilePrograms

TARGETS: list[Target[Any]] = [Sorts(), Scenes(), Systems(), WhilePrograms(), SmoothPrograms()]
