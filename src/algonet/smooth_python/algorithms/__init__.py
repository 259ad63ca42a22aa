"""Classic algorithms in plain Python, smooth: each is also an example of what `@smooth` takes."""

from .bubble_sort import bubble_sort
from .flood_fill import flood_fill
from .levenshtein import levenshtein
from .point_in_polygon import point_in_polygon
from .queue import bank_queue
from .search import binary_search
from .shortest_path import shortest_path

#: Every algorithm by name, for tests, the gallery and the documentation.
ALGORITHMS = {
    "bubble_sort": bubble_sort,
    "binary_search": binary_search,
    "levenshtein": levenshtein,
    "shortest_path": shortest_path,
    "flood_fill": flood_fill,
    "point_in_polygon": point_in_polygon,
    "bank_queue": bank_queue,
}

__all__ = [
    "ALGORITHMS",
    "bank_queue",
    "binary_search",
    "bubble_sort",
    "flood_fill",
    "levenshtein",
    "point_in_polygon",
    "shortest_path",
]
