"""The gallery: one self-contained HTML page, a section per domain, each with pictures, captions and the code that drew them.

A section is a Markdown file: its title and introduction with the definitions that its pictures share, and for each picture a
caption and a program that writes it as a PNG or GIF, and a WAV where something can be heard. What is run is what is shown.
"""

from __future__ import annotations

import ast
import base64
import contextlib
import html
import linecache
import re
import tempfile
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from algonet import __version__

#: Sections, the most beautiful first, and what the navigation calls them: it fits on one line of a desktop.
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
#: Where the playground lets one touch what a section shows.
ROOMS = {
    "render": "Renderer",
    "ifs": "Fractals",
    "while_lang": "Loops",
    "smooth_python": "Python",
    "sorting": "Sorting",
}
#: The name of the page in its folder.
PAGE = "index.html"


@dataclass(frozen=True)
class Figure:
    """One picture of the gallery: PNG or GIF bytes, a sentence on what to see, the program that made it, and for those
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
    sections = []
    for slug in PAGES:
        (title, intro, _), *parts = _parts(slug, quick)
        figures = []
        for name, _, _ in parts:
            figures.append(draw(slug, name, quick))
            progress(title, name)
        sections.append(Section(slug, title, intro, tuple(figures)))
    return sections


def programs(slug: str, quick: bool = False) -> dict[str, str]:
    """The program of each figure of a section, by name: it runs alone and writes the picture into the current folder."""
    (_, _, shared), *parts = _parts(slug, quick)
    return {name: _whole(shared, code) for name, _, code in parts}


def draw(slug: str, name: str, quick: bool = False) -> Figure:
    """Run a figure's program. Numbers that its caption names in braces are those of the run."""
    code = programs(slug, quick)[name]
    caption = next(caption for figure, caption, _ in _parts(slug, quick) if figure == name)
    with _workplace() as folder:
        found = run(code, f"<{slug}: {name}>")
        files = {path.suffix: path.read_bytes() for path in folder.iterdir()}
    image = files.get(".png") or files[".gif"]
    return Figure(name, image, caption.format_map(found), programs(slug)[name], files.get(".wav", b""))


def run(code: str, name: str) -> dict[str, Any]:
    """Run a program and return its variables; `@smooth` finds its source under `name`."""
    linecache.cache[name] = (len(code), None, code.splitlines(keepends=True), name)
    scope: dict[str, Any] = {"__name__": "__main__"}
    exec(compile(code, name, "exec"), scope)
    return scope


@contextlib.contextmanager
def _workplace() -> Iterator[Path]:
    """An empty folder to work in; afterwards settings of matplotlib, warnings and torch are as before. Nearly all tensors of
    the gallery are small: a second thread of torch would only wait, and on a busy machine keep the first one waiting."""
    import matplotlib
    import torch

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    threads = torch.get_num_threads()
    look: Any = {"savefig.dpi": 110, "savefig.bbox": "tight", "savefig.facecolor": "white"}
    with (
        tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder), plt.rc_context(look), warnings.catch_warnings(),
        torch.random.fork_rng(devices=[]),
    ):  # fmt: skip
        torch.set_num_threads(1)
        try:
            yield Path(folder)
        finally:
            torch.set_num_threads(threads)
            plt.close("all")


def _parts(slug: str, quick: bool) -> list[tuple[str, str, str]]:
    """(heading, text, code) of the section and of each figure. `x = 9  # quick: 3` is a smaller value where time is short."""
    text = _source(slug)
    text = re.sub(r"= [^\n]*?  # quick: ", "= ", text) if quick else re.sub(r"  # quick: .*", "", text)
    found = re.findall(r"^##? ([^\n]+)\n\n(.*?)\n\n```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    return [(heading, " ".join(said.split()), code) for heading, said, code in found]


def _source(slug: str) -> str:
    return resources.files(__name__).joinpath(f"{slug}.md").read_text(encoding="utf-8")


def _whole(shared: str, code: str) -> str:
    """A program with those of the shared definitions that it needs before it."""
    lines, tree, needed = shared.splitlines(), ast.parse(shared).body, _names(code)
    defined = [(node, _defined(node)) for node in tree]
    while True:
        more = needed.union(*(_names(node) for node, names in defined if names & needed))
        if more == needed:
            break
        needed = more
    imports, chosen = [], []
    for node, names in defined:
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            node.names = [alias for alias in node.names if (alias.asname or alias.name) in needed]
            imports += [ast.unparse(node)] if node.names else []
        elif names & needed:
            first = min([node.lineno, *(d.lineno for d in getattr(node, "decorator_list", []))])
            text = "\n".join(lines[first - 1 : node.end_lineno])
            chosen.append(f"\n\n{text}\n\n" if isinstance(node, (ast.FunctionDef, ast.ClassDef)) else text)
    whole = "\n".join([*imports, "", *chosen, "", code])
    return re.sub(r"\n{4,}", "\n\n\n", whole)


def _defined(node: ast.stmt) -> set[str]:
    return {node.name} if isinstance(node, (ast.FunctionDef, ast.ClassDef)) else _names(node, ast.Store)


def _names(tree: str | ast.AST, context: type = ast.expr_context) -> set[str]:
    nodes = ast.walk(ast.parse(tree) if isinstance(tree, str) else tree)
    return {node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, context)}


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
        f"<p>{html.escape(section.intro)}</p>\n{figures}\n<p class=onward>{_onward(section.slug)}</p>\n</section>"
    )


def _onward(slug: str) -> str:
    room = f"; by hand: <code>algonet play</code>, room {ROOMS[slug]}" if slug in ROOMS else ""
    return f"More: <code>docs/{html.escape(slug)}.md</code>{room}."


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
    caption, code, sound = html.escape(figure.caption), html.escape(figure.code.strip()), ""
    if figure.sound:
        heard = base64.b64encode(figure.sound).decode()
        sound = f'<audio controls preload="metadata" src="data:audio/wav;base64,{heard}"></audio>\n'
    return (
        f'<figure>\n<div class="picture{wide}"><img loading="lazy" width="{width}" height="{height}" '
        f'alt="{caption}" src="data:image/{kind};base64,{data}"></div>\n'
        f"{sound}<figcaption>{caption}</figcaption>\n"
        f"<details><summary>the program that draws it</summary><pre><code>{code}</code></pre></details>\n</figure>"
    )
