"""The whole gallery in a real browser: no console errors, every picture loads, nothing wider than the window, code that
can be read; on a desk and on a phone, in light and in dark."""

from __future__ import annotations

import io
import re
import sys
from pathlib import Path

import pytest
from PIL import Image

from algonet.apps import gallery

sys.path.insert(0, str(Path(__file__).parent))
from chromium import PROGRAM, Chromium

DESK, PHONE = 1200, 390

#: Pictures load when they are scrolled to: ask for all of them.
LOADED = """(async () => {
  for (const image of document.images) image.loading = "eager";
  await Promise.all([...document.images].map(image => image.decode().catch(() => null)));
  return [...document.images].filter(image => image.naturalWidth > 0 && image.alt).length;
})()"""
#: Boxes that stick out of the page sideways; what scrolls within its own frame does not.
WIDE = """[...document.querySelectorAll("body *")].filter(e => {
  for (let p = e.parentElement; p; p = p.parentElement)
    if (getComputedStyle(p).overflowX !== "visible") return false;
  return e.getBoundingClientRect().right > innerWidth + 1;
}).map(e => e.outerHTML.slice(0, 80))"""
#: The least contrast (WCAG) between text and what is behind it, and the least size of text, over text of every kind.
READABLE = """(() => {
  const rgb = text => text.match(/[\\d.]+/g).map(Number);
  const light = c => [0.2126, 0.7152, 0.0722].reduce((sum, w, i) => {
    const v = c[i] / 255;
    return sum + w * (v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
  }, 0);
  const behind = e => {
    for (; e; e = e.parentElement) {
      const c = rgb(getComputedStyle(e).backgroundColor);
      if (c.length < 4 || c[3] > 0) return c;
    }
    return [255, 255, 255];
  };
  for (const d of document.querySelectorAll("details")) d.open = true;
  const texts = [...document.querySelectorAll("h1, h2, section > p, figcaption, summary, pre code, nav a, footer")];
  const contrast = e => {
    const [a, b] = [light(rgb(getComputedStyle(e).color)), light(behind(e))];
    return (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
  };
  return [Math.min(...texts.map(contrast)), Math.min(...texts.map(e => parseFloat(getComputedStyle(e).fontSize)))];
})()"""


@pytest.fixture
def browser(tmp_path):
    if PROGRAM is None:
        pytest.skip("no Chromium on this machine")
    running = Chromium(tmp_path / "profile")
    yield running
    running.close()


def _check_figures(section: gallery.Section) -> None:
    assert section.figures, section.slug
    programs = gallery.programs(section.slug)
    assert [figure.name for figure in section.figures] == list(programs)
    for figure in section.figures:
        assert figure.image[:4] in (b"\x89PNG", b"GIF8")
        assert len(figure.image) > 1000
        with Image.open(io.BytesIO(figure.image)) as picture:
            assert len(picture.convert("RGB").getcolors(1 << 24) or ()) > 16, f"{figure.name}: hardly a picture"
        assert re.search(r"\w.*\.$", figure.caption, re.DOTALL), f"{figure.name}: a caption is a sentence"
        assert "{" not in figure.caption
        assert figure.code == programs[figure.name], f"{figure.name}: what is shown is what is run, at its full size"
        assert figure.code.strip()
        assert "quick" not in figure.code


def _check_page(browser: Chromium, url: str, pictures: int, width: int, scheme: str) -> None:
    browser.open(url, width=width, scheme=scheme)
    assert browser.value(LOADED) == pictures
    assert browser.value("document.documentElement.scrollWidth") <= width, "the page scrolls sideways"
    assert browser.value(WIDE) == []
    contrast, size = browser.value(READABLE)
    assert contrast >= 4.5, "the least contrast for reading, by WCAG AA"
    assert size >= 12
    assert browser.messages == []
    dark = browser.value("getComputedStyle(document.body).backgroundColor") == "rgb(20, 23, 28)"
    assert dark == (scheme == "dark")


def _check_links(browser: Chromium, sections: list[gallery.Section], width: int) -> None:
    hidden = browser.value("(bar => bar.scrollWidth - bar.clientWidth)(document.querySelector('nav div'))")
    assert hidden == 0 or width == PHONE, f"{hidden} pixels of the navigation are cut off"
    for section in sections[:-1]:  # the last may be too short to reach the top
        browser.value(f"document.querySelector('nav a[href=\"#{section.slug}\"]').click()")
        top = browser.value(f"document.getElementById('{section.slug}').getBoundingClientRect().top")
        navigation = browser.value("document.querySelector('nav').getBoundingClientRect().bottom")
        assert navigation <= top < 130, (
            f"the heading of {section.slug} is at {top}, under the navigation down to {navigation}"
        )


@pytest.fixture
def briefly(monkeypatch):
    """The trainings of the gallery in a few steps: what they learn is not what is tested here."""
    source = gallery._source
    brief = re.compile(r"(steps = \d+  # quick: )\d+")
    monkeypatch.setattr(gallery, "_source", lambda slug: brief.sub(r"\g<1>30", source(slug)))


@pytest.mark.slow
def test_whole_gallery(tmp_path, request, briefly):
    """In one test: making the pictures takes far longer than looking at them."""
    sections = gallery.build(quick=True, progress=lambda section, figure: None)
    assert [section.slug for section in sections] == list(gallery.PAGES)
    for section in sections:
        _check_figures(section)
    browser = request.getfixturevalue("browser")
    page = tmp_path / gallery.PAGE
    page.write_text(gallery.page(sections), encoding="utf-8")
    url = page.as_uri()
    # Colours do not depend on the width, nor widths on the colours
    for width, scheme in ((DESK, "light"), (PHONE, "dark")):
        _check_page(browser, url, sum(len(section.figures) for section in sections), width, scheme)
        _check_links(browser, sections, width)


def test_a_broken_page_is_noticed(browser, tmp_path):
    """The checks above can fail."""
    path = tmp_path / "broken.html"
    path.write_text(
        '<!doctype html><script>console.error("oh")</script><img alt="x" src="data:image/png;base64,AAAA">'
        '<div style="width: 900px">wide</div>',
        encoding="utf-8",
    )
    browser.open(path.as_uri(), width=PHONE)
    assert browser.value(LOADED) == 0
    assert browser.value(WIDE)
    assert any("oh" in message for message in browser.messages)


def test_photographs_show_the_element(browser, tmp_path):
    from PIL import Image

    path = tmp_path / "page.html"
    path.write_text(
        '<!doctype html><p>a</p><div id="b" style="background: red; width: 50px; height: 40px">', encoding="utf-8"
    )
    browser.open(path.as_uri(), width=DESK)
    with Image.open(browser.photograph(tmp_path / "shot.png", "#b")) as shot:
        assert shot.size == (50, 40)
        assert shot.convert("RGB").getpixel((5, 5)) == (255, 0, 0)
