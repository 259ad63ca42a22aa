"""Make the pictures of the documentation: figures of the gallery, small enough to live in a repository.

    python docs/pictures.py            # all of them, some minutes
    python docs/pictures.py ifs render # the sections named

They are drawn by the code behind `algonet demo` (src/algonet/apps/gallery), and land in docs/assets as SECTION-FIGURE.webp.
"""

from __future__ import annotations

import io
import re
import sys
from pathlib import Path

from algonet.apps import gallery
from algonet.core.files import write_bytes

ASSETS = Path(__file__).parent / "assets"
#: Figures of each section that pages of the documentation show.
PICTURES = {
    "relax": ("sigmoids", "exits", "steepness", "conorms", "noise"),
    "nn": ("styles", "learning", "topology"),
    "while_lang": ("surfaces", "accuracy", "halting", "trained", "readings"),
    "smooth_python": ("bubble-sort", "point-in-polygon", "shortest-path", "flood-fill", "levenshtein"),
    "sorting": ("network", "layers", "permutations", "methods"),
    "ifs": ("presets", "levels-of-detail", "a-fit"),
    "render": (
        "from-sharp-to-soft",
        "independent-of-the-tessellation",
        "textures",
        "from-pictures-to-a-mesh",
        "a-camera-from-far-away",
    ),
    "speech": ("words", "choice"),
    "ran": ("learning", "data-paths"),
    "explain": ("use",),
}
#: Upper parts of pictures: their own name, the whole picture's, and the share of its height.
TOPS = (
    ("render-from-sharp-to-soft-top", "render-from-sharp-to-soft", 0.345),
    ("sorting-permutations-top", "sorting-permutations", 0.43),
    ("ifs-presets-top", "ifs-presets", 0.252),
    ("ifs-presets-half", "ifs-presets", 0.487),
)
#: Pictures on tiles of one size, for the README: the whole picture, centred on white.
TILES = (
    "while_lang-surfaces",
    "render-from-pictures-to-a-mesh",
    "ifs-presets-top",
    "render-from-sharp-to-soft-top",
    "smooth_python-point-in-polygon",
    "sorting-permutations-top",
)
TILE = (720, 330)
#: Pictures of runs and measurements, which are not drawn here; the page that shows one says how it came about.
TAKEN = {"fitting-h200", "ran-h200", "ran-weak", "programs-race", "render-cost", "routing-loads"}
LARGEST = 60_000
#: (width in pixels, quality) to try in turn until a picture is small enough; pages are twice as dense on good screens.
SIZES = ((1200, 90), (1200, 75), (1000, 75), (800, 75), (640, 75))


def names() -> set[str]:
    """All files that belong into docs/assets, without suffix."""
    whole = {f"{section}-{figure}" for section, figures in PICTURES.items() for figure in figures}
    return whole | {name for name, _, _ in TOPS} | TAKEN | {f"tile-{name}" for name in TILES}


def slug(name: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")


def small(image: bytes, top: float = 1.0) -> bytes:
    """The picture, or the upper part of it, as WebP: shaded surfaces would need many times as much, or few colours, as PNG."""
    from PIL import Image

    source = Image.open(io.BytesIO(image)).convert("RGB")
    source = source.crop((0, 0, source.width, round(source.height * top)))
    for width, quality in SIZES:
        picture, buffer = source.copy(), io.BytesIO()
        picture.thumbnail((width, 10 * width), Image.Resampling.LANCZOS)
        picture.save(buffer, format="WEBP", quality=quality, method=6)
        if buffer.tell() < LARGEST:
            return buffer.getvalue()
    raise ValueError(f"small: a picture takes {buffer.tell()} bytes even at its smallest, {LARGEST} are allowed")


def store(name: str, image: bytes) -> None:
    write_bytes(ASSETS / f"{name}.webp", small(image))
    for part, whole, share in TOPS:
        if whole == name:
            write_bytes(ASSETS / f"{part}.webp", small(image, share))
    print(name, flush=True)


def tile(name: str) -> None:
    """Put a picture of docs/assets on a tile."""
    from PIL import Image, ImageOps

    with Image.open(ASSETS / f"{name}.webp") as source:
        whole = ImageOps.pad(source.convert("RGB"), TILE, Image.Resampling.LANCZOS, color="white")
    buffer = io.BytesIO()
    whole.save(buffer, format="WEBP", quality=88, method=6)
    write_bytes(ASSETS / f"tile-{name}.webp", buffer.getvalue())


def section(name: str) -> None:
    """Draw and store the wanted figures of a section."""
    figures = {slug(figure): figure for figure in gallery.programs(name)}
    for wanted in PICTURES[name]:
        store(f"{name}-{wanted}", gallery.draw(name, figures[wanted]).image)


if __name__ == "__main__":
    for chosen in sys.argv[1:] or PICTURES:
        section(chosen)
    for chosen in TILES:
        tile(chosen)
