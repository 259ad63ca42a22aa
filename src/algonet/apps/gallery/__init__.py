"""The gallery: one self-contained HTML page, a section per domain, each with pictures, captions and the code behind."""

from __future__ import annotations

import base64
import html
import importlib
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from importlib import resources

from algonet import __version__

#: Sections, the most beautiful first, and what the navigation calls them: it fits on one line of a desktop. Each module has
#: TITLE, INTRO and figures(quick) -> Iterator[Figure].
PAGES = {
    "render": "Renderer",
    "ifs": "Fractals",
    "while_lang": "Programs",
    "smooth_python": "Python",
    "sorting": "Sorting",
    "speech": "Speech",
    "ran": "Inverse problems",
    "nn": "Networks",
    "explain": "Relevance",
    "relax": "Softness",
}
#: The name of the page in its folder.
PAGE = "index.html"


@dataclass(frozen=True)
class Figure:
    """One picture of the gallery: PNG or GIF bytes, a sentence on what to see, the few lines that made it, and for those
    that can be heard the bytes of a WAV file."""

    name: str
    image: bytes
    caption: str
    code: str = ""
    sound: bytes = b""


@dataclass(frozen=True)
class Section:
    slug: str
    title: str
    intro: str
    figures: tuple[Figure, ...]


def build(quick: bool, progress: Callable[[str, str], None]) -> list[Section]:
    """Make every section; `progress(section, figure)` is told what was just finished."""
    import matplotlib

    matplotlib.use("Agg")
    sections, code = [], snippets()
    for name in PAGES:
        module = importlib.import_module(f"algonet.apps.gallery.{name}")
        figures = []
        with _one_thread():
            for figure in module.figures(quick):
                figures.append(replace(figure, code=code.get((name, figure.name), figure.code)))
                progress(module.TITLE, figure.name)
        sections.append(Section(name, module.TITLE, module.INTRO, tuple(figures)))
    return sections


def snippets() -> dict[tuple[str, str], str]:
    """The code under each picture, by section and figure: whole programs that run alone and print something."""
    text = resources.files("algonet.apps.gallery").joinpath("snippets.md").read_text(encoding="utf-8")
    found = re.findall(r"^## (\w+): ([^\n]+)\n\n```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    return {(section, figure): code for section, figure, code in found}


@contextmanager
def _one_thread() -> Iterator[None]:
    """Nearly all tensors of the gallery are small: a second thread of torch would only wait, and on a busy machine keep the
    first one waiting with it."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def page(sections: list[Section]) -> str:
    """The HTML of the whole gallery, with style and pictures inside."""
    template = resources.files("algonet.apps.gallery").joinpath("gallery.html").read_text(encoding="utf-8")
    links = "\n".join(f'<a href="#{s.slug}">{html.escape(PAGES.get(s.slug, s.title))}</a>' for s in sections)
    template = template.replace("{{links}}", links).replace("{{version}}", __version__)
    return template.replace("{{sections}}", "\n".join(map(_section, sections)))


def _section(section: Section) -> str:
    figures = "\n".join(map(_figure, section.figures))
    return (
        f'<section id="{section.slug}">\n<h2>{html.escape(section.title)}</h2>\n'
        f"<p>{html.escape(section.intro)}</p>\n{figures}\n</section>"
    )


def size_of(image: bytes) -> tuple[int, int]:
    """Width and height of a PNG or GIF: the page states them, so that nothing moves while pictures load."""
    if image[:3] == b"GIF":
        return int.from_bytes(image[6:8], "little"), int.from_bytes(image[8:10], "little")
    return int.from_bytes(image[16:20], "big"), int.from_bytes(image[20:24], "big")


def _figure(figure: Figure) -> str:
    kind = "gif" if figure.image[:3] == b"GIF" else "png"
    width, height = size_of(figure.image)
    wide = " wide" if width > 960 and width > 1.4 * height else ""  # several plots side by side
    data = base64.b64encode(figure.image).decode()
    code = ""
    if figure.code:
        code = f"<details><summary>code</summary><pre><code>{html.escape(figure.code.strip())}</code></pre></details>"
    caption = html.escape(figure.caption)
    sound = ""
    if figure.sound:
        heard = base64.b64encode(figure.sound).decode()
        sound = f'<audio controls preload="metadata" src="data:audio/wav;base64,{heard}"></audio>\n'
    return (
        f'<figure>\n<div class="picture{wide}"><img loading="lazy" width="{width}" height="{height}" '
        f'alt="{caption}" src="data:image/{kind};base64,{data}"></div>\n'
        f"{sound}<figcaption>{caption}</figcaption>\n{code}\n</figure>"
    )
