"""The gallery in a real browser: no console errors, every picture loads, nothing wider than a phone."""

from __future__ import annotations

import re
import shutil
import subprocess

import pytest

from algonet.cli import gallery

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine"),
]
FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--enable-logging=stderr",
    "--virtual-time-budget=5000",
    "--dump-dom",
]
PROBE = """<script>
window.addEventListener("load", () => {
  const images = [...document.images];
  const loaded = images.filter(image => image.naturalWidth > 0).length;
  document.title = `loaded ${loaded} of ${images.length}, page ${document.documentElement.scrollWidth}, window ${innerWidth}`;
});
</script></body>"""


@pytest.fixture(scope="module")
def page() -> tuple[str, int]:
    """The quick gallery of the first section; its pictures are made as those of every other."""
    import matplotlib

    matplotlib.use("Agg")
    from algonet.cli.pages import relax

    figures = tuple(relax.figures(quick=True))
    sections = [gallery.Section("relax", relax.TITLE, relax.INTRO, figures)]
    # Lazy pictures below the window never load without scrolling
    return gallery.page(sections).replace('loading="lazy"', "").replace("</body>", PROBE), len(figures)


@pytest.mark.parametrize(("width", "scheme"), [(1200, "light"), (500, "dark")])
def test_page_opens_cleanly(page, tmp_path, width, scheme):
    text, pictures = page
    path = tmp_path / "index.html"
    path.write_text(text, encoding="utf-8")
    dark = ["--force-dark-mode"] if scheme == "dark" else []
    command = [str(CHROMIUM), *FLAGS, *dark, f"--window-size={width},900", f"--user-data-dir={tmp_path / 'profile'}"]
    done = subprocess.run([*command, path.as_uri()], capture_output=True, text=True, timeout=120)
    title = re.search(r"<title>loaded (\d+) of (\d+), page (\d+), window (\d+)</title>", done.stdout)
    assert title, done.stderr[-2000:]
    loaded, total, page_width, window_width = map(int, title.groups())
    assert loaded == total == pictures
    assert page_width <= window_width, "the page scrolls sideways"
    assert "CONSOLE" not in done.stderr, done.stderr[-2000:]
