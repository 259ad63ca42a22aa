"""The documentation: every Python block of it and the README runs, it is complete, works offline, and its claims hold."""

from __future__ import annotations

import contextlib
import doctest
import importlib
import inspect
import io
import itertools
import math
import os
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch

import algonet
import algonet.fit
from algonet.relax import Cauchy, Gaussian, Logistic, Optimal, Probabilistic, Reciprocal, StudentT, soft_max, soft_min

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))  # benchmarks/ and docs/ are not installed

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("**/*.md"))]
BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
IMAGE = re.compile(r"!\[[^\]]*\]\(([^)]+)\)|<img[^>]*src=\"([^\"]+)\"")


#: What a Python block prints, where the page shows it right below the block; "..." stands for anything.
OUTPUT = re.compile(r"\n*```text\n(.*?)^```", re.MULTILINE | re.DOTALL)
CHECKER, LENIENT = doctest.OutputChecker(), doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
NUMBER = re.compile(r"\d+(?:\.\d*)?(?:e[-+]?\d+)?")


def is_shown(output: str, found: str) -> bool:
    """Whether `found` is the `output` of a page. The fourth digit is the machine's, and a table that is sorted by time comes in
    any order."""

    def same(wanted: str, line: str) -> bool:
        if "..." in wanted:
            return CHECKER.check_output(f"{wanted}\n", f"{line}\n", LENIENT)
        texts = ["".join(NUMBER.sub("#", text).split()) for text in (wanted, line)]
        numbers = zip(NUMBER.findall(wanted), NUMBER.findall(line), strict=False)
        return texts[0] == texts[1] and all(
            math.isclose(float(a), float(b), rel_tol=2e-4, abs_tol=2e-4) for a, b in numbers
        )

    if CHECKER.check_output(output, found, LENIENT):
        return True
    left = [line for line in found.splitlines() if line.strip()]
    for wanted in filter(str.strip, output.splitlines()):
        match = next((line for line in left if same(wanted, line)), None)
        if match is None:
            return False
        left.remove(match)
    return not left


def blocks(page: Path) -> list[tuple[int, str, str | None]]:
    """(line, code, output) of each Python block."""
    text = page.read_text(encoding="utf-8")
    outputs = [OUTPUT.match(text, match.end()) for match in BLOCK.finditer(text)]
    return [
        (text[: match.start(1)].count("\n"), match.group(1), output and output.group(1))
        for match, output in zip(BLOCK.finditer(text), outputs, strict=True)
    ]


def printed(page: Path, line: int, code: str) -> str:
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        # Padded with newlines, so that a traceback names the page's own line
        exec(compile("\n" * line + code, str(page), "exec"), {"__name__": "__docs__"})
    return out.getvalue()


def show_outputs(page: Path) -> None:
    """Write what each block prints into the page, where it shows an output: `PYTHONPATH=tests python -m test_docs PAGE ...`"""
    text = page.read_text(encoding="utf-8")
    for line, code, output in blocks(page):
        if output is not None:
            before, after = f"{code}```", f"```text\n{output}```"
            start = text.index(after, text.index(before))
            text = f"{text[:start]}```text\n{printed(page, line, code).rstrip()}\n```{text[start + len(after) :]}"
    page.write_text(text, encoding="utf-8")


@pytest.mark.parametrize("page", [page for page in PAGES if blocks(page)], ids=lambda page: page.name)
def test_examples_run(page, tmp_path, monkeypatch):
    """Each alone, as by copy and paste; each prints something, and what the page shows below it."""
    monkeypatch.chdir(tmp_path)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # beside other tests, threads mostly wait for each other
    try:
        for line, code, output in blocks(page):
            found = printed(page, line, code)
            assert found.strip(), f"{page.name}, line {line}: prints nothing"
            assert output is None or is_shown(output, found), (
                f"{page.name}, line {line}: prints\n{found}`PYTHONPATH=tests python -m test_docs {page.name}` shows it"
            )
    finally:
        torch.set_num_threads(threads)


def test_outputs_may_differ_in_their_last_digit_and_rows_in_their_order():
    page = "name  ms  error\nb     ...  8.99%\na     ...  1.00%\ntensor([3., -2.5000])\n"
    assert is_shown(page, "name  ms  error\na     0.2  1.00%\nb     0.3  8.99%\ntensor([3.0000, -2.5001])\n")
    for wrong in (page.replace("8.99", "8.89"), page.replace("3.", "3.01"), page.replace("-2", "2"), page + "more\n"):
        assert not is_shown(page, wrong.replace("...", "0.2"))
    assert not is_shown(page, page.replace("tensor([3., -2.5000])\n", ""))


def test_there_are_examples():
    assert sum(len(blocks(page)) for page in PAGES) >= 10


IMPORT = re.compile(r"\bfrom (algonet[\w.]*) import ([\w, ]+)")


def test_imports_that_prose_names_work():
    """In indented lines and sentences, too, which do not run."""
    named = {(home, name.split()[0]) for page in PAGES for home, names in IMPORT.findall(page.read_text("utf-8"))
             for name in names.split(",") if name.strip()}  # fmt: skip
    assert len(named) > 50
    missing = [f"{home}.{name}" for home, name in sorted(named) if not hasattr(importlib.import_module(home), name)]
    assert not missing


def test_pictures_exist_and_are_small():
    from docs import pictures

    shown = {(page.parent / (a or b)).resolve() for page in PAGES for a, b in IMAGE.findall(page.read_text("utf-8"))}
    made = {(pictures.ASSETS / f"{name}.webp").resolve() for name in pictures.names()}
    assert shown, "no page shows a picture"
    assert shown <= made, "a picture that docs/pictures.py does not make"
    assert made == {path.resolve() for path in pictures.ASSETS.glob("*.webp")}
    assert all(path.stat().st_size < pictures.LARGEST for path in made)


def test_the_page_of_defaults_says_what_they_give():
    """Its words exactly, its figures within a tenth: those at the last digit differ from machine to machine."""
    from docs import defaults

    number = re.compile(r"(?<=\| )\d[\d.e-]*(?= \|)")
    there, made = defaults.PAGE.read_text(encoding="utf-8"), defaults.markdown()
    assert number.sub("0", there) == number.sub("0", made), "run `python -m docs.defaults`"
    for line, again in zip(there.splitlines(), made.splitlines(), strict=True):
        said, found = ([float(figure) for figure in number.findall(text)] for text in (line, again))
        assert said == pytest.approx(found, rel=0.1), f"{line}: run `python -m docs.defaults`"


@pytest.mark.parametrize("name", ["benchmarks", "experiments"])
def test_pages_of_tables_leave_out_how_modules_are_run(name):
    """They take the rest of the modules' docstrings."""
    text = (ROOT / "docs" / f"{name}.md").read_text(encoding="utf-8")
    assert not re.findall(rf"^ *(?:Run: |python -m {name}|\[--).*|\n\n\n", text, re.MULTILINE)


#: A line of a shell block, or an indented one, that calls the command.
COMMAND = re.compile(r"^(?: {4})?algonet ([a-z].*?)(?:\s+#.*)?$", re.MULTILINE)
SHELL = re.compile(r"^```sh\n(.*?)^```|((?:^ {4}.*\n)+)", re.MULTILINE | re.DOTALL)


def calls() -> list[str]:
    """Every call of the `algonet` command that the documentation shows."""
    blocks = ["".join(match) for page in PAGES for match in SHELL.findall(page.read_text("utf-8"))]
    return sorted({call for block in blocks for call in COMMAND.findall(block)})


@pytest.fixture(scope="module")
def commands():
    import typer

    from algonet import cli

    return typer.main.get_command(cli.mount())


@pytest.mark.parametrize("call", calls())
def test_commands_exist(call, commands):
    words, command = call.split(), commands
    while words and hasattr(command, "commands"):
        assert words[0] in command.commands, f"there is no `algonet {call}`"
        command = command.commands[words.pop(0)]
    options = {flag for parameter in command.params for flag in parameter.opts}
    assert {word for word in words if word.startswith("--")} <= options
    needed = [parameter for parameter in command.params if parameter.required]
    assert len([word for word in words if not word.startswith("--")]) >= len(needed)


def public_names() -> set[str]:
    """What the API reference must hold: everything in the domains' and the package's lists of names."""
    names = set()
    for domain in (*algonet._NAMES, "algonet.core.backends", "algonet.core.autograd", "algonet.core.codegen.generate"):
        module = importlib.import_module(domain)
        own = [n for n, v in vars(module).items() if not n.startswith("_") and getattr(v, "__module__", "") == domain]
        names |= {f"{domain}.{name}" for name in getattr(module, "__all__", own)}
    names |= {f"{home}.{name}" for home, listed in algonet._NAMES.items() for name in listed}
    # What renderer and fractals hand on is described where it lives
    handed_on = {f"{home}.{name}" for home in ("algonet.render", "algonet.ifs") for name in algonet.fit.__all__}
    return names - handed_on


def _is_error(value: object) -> bool:
    return inspect.isclass(value) and issubclass(value, BaseException)


def parameters() -> list[tuple[str, str, str]]:
    """(owner, parameter, docstring) of every parameter of every public function and class."""
    found = []
    for home in algonet._NAMES:
        module = importlib.import_module(home)
        for name in module.__all__:
            value = getattr(module, name)
            if not (inspect.isroutine(value) or inspect.isclass(value)) or _is_error(value):
                continue
            try:
                signature = inspect.signature(value)
            except (TypeError, ValueError):
                continue
            text = inspect.getdoc(value) or ""
            kept = [p for p in signature.parameters.values() if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
            found += [(name, p.name, text) for p in kept]
    return found


def test_every_parameter_is_described():
    from docs.parameters import description

    missing = [f"{owner}: {name}" for owner, name, text in parameters() if description(name, text, owner) is None]
    assert not missing, "name it in backticks in the docstring, or in docs/parameters.toml"


def untold(reference: str) -> list[str]:
    """Parameters and fields that the API pages show without a type, or without what they are, or not at all."""
    chapters = re.split(r'<h\d id="(algonet\.[^"]+)"', reference)
    rows = re.compile(r"<tr>\s*<td><code>(\w+)</code></td>\s*(.*?)</tr>", re.DOTALL)
    found: dict[str, dict[str, str]] = {}
    for owner, chapter in zip(chapters[1::2], chapters[2::2], strict=True):
        found.setdefault(owner.split(".")[-1], {}).update(rows.findall(chapter))
    return [
        f"{owner}.{name}"
        for owner, name, _ in parameters()
        if "<td></td>" in found.get(owner, {}).get(name, "<td></td>")
    ]


def test_site_is_complete_and_works_offline(tmp_path):
    site = tmp_path / "site"
    command = [sys.executable, "-m", "mkdocs", "build", "--quiet", "--strict", "--site-dir", str(site)]
    done = subprocess.run(
        command, cwd=ROOT, env={**os.environ, "NO_MKDOCS_2_WARNING": "1"}, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    reference = "".join(page.read_text("utf-8") for page in (site / "api").glob("*.html"))
    anchors = re.findall(r'id="(algonet\.[^"]+)"', reference)
    # a function named like the module that holds it is listed under that module
    found = {*anchors, *(f"{'.'.join(a.split('.')[:2])}.{a.split('.')[-1]}" for a in anchors)}
    assert not public_names() - found
    assert not untold(reference)
    for page in site.glob("**/*.html"):
        tags = re.findall(r"<(?:script|link|img|iframe|source)\b[^>]*>", page.read_text("utf-8"))
        assert not [tag for tag in tags if re.search(r'(?:src|href)="(?:https?:)?//', tag) and "canonical" not in tag]
    for page in (site / "notebooks").glob("*.html"):
        shown = re.findall(r'<img[^>]*\bsrc="([^"/]+\.png)"', page.read_text("utf-8"))
        assert all(name.startswith(f"{page.stem}_") for name in shown), f"{page.name} shows another notebook's pictures"
        assert all((page.parent / name).is_file() for name in shown)
    _look_at(site, tmp_path / "profile")


def _look_at(site: Path, profile: Path) -> None:
    """Open pages from disk in a browser, where there is one: pictures load, nothing is wider than a phone, no errors."""
    sys.path.insert(0, str(ROOT / "tests" / "cli"))
    from chromium import PROGRAM, Chromium

    if PROGRAM is None:
        return
    browser = Chromium(profile)
    try:
        for name, width in itertools.product(("index", "one_sitting", "formulas", "notebooks/4_fractals"), (1280, 390)):
            browser.open((site / f"{name}.html").as_uri(), width=width, scheme="dark" if width < 400 else "light")
            broken = "Promise.all([...document.images].map(i => i.decode().then(() => 0, () => 1)))"
            assert not any(browser.value(broken)), f"{name}: a picture does not load"
            assert browser.value("document.documentElement.scrollWidth") <= width, f"{name} scrolls sideways"
            assert not browser.messages, f"{name}: {browser.messages}"
            if name == "formulas":
                assert browser.value("document.querySelectorAll('.katex-display').length") >= 5
                assert browser.value("document.querySelectorAll('.katex-error').length") == 0
            if name.startswith("notebooks"):
                assert browser.value("document.querySelectorAll('article img').length") >= 2, "the notebook's pictures"
        _search(browser, "median")
    finally:
        browser.close()


def _search(browser: Any, word: str) -> None:
    """From disk, without a server."""
    kinds = "i.dispatchEvent(new Event('input', {bubbles: true})); i.dispatchEvent(new KeyboardEvent('keyup', {bubbles: true}))"
    browser.value(f"(i => {{i.focus(); i.value = '{word}'; {kinds}}})(document.querySelector('.md-search__input'))")
    until = time.monotonic() + 600
    while not browser.value("document.querySelectorAll('.md-search-result__item').length"):
        assert time.monotonic() < until, "the search finds nothing"
        time.sleep(0.2)


# docs/migration.md


@pytest.mark.parametrize("network", ["odd_even", "bitonic"])
@pytest.mark.parametrize("family", [Logistic, Cauchy, Gaussian, Reciprocal, Optimal], ids=lambda f: f.__name__.lower())
def test_diffsort_agrees(network, family):
    diffsort = pytest.importorskip("diffsort")
    x = torch.randn(5, 8)
    theirs, matrix = diffsort.DiffSortNet(network, 8, steepness=10.0, distribution=family.__name__.lower())(x)
    layout = algonet.OddEven() if network == "odd_even" else algonet.Bitonic()
    ours = algonet.soft_sort(x, relax=family(10.0), method=layout, return_permutation=True, backend="reference")
    torch.testing.assert_close(ours.values, theirs, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(ours.permutation.mT, matrix, atol=1e-5, rtol=1e-5)


@pytest.mark.filterwarnings("ignore:Using a non-tuple sequence:UserWarning")  # algovision's own
def test_algovision_agrees():
    algovision = pytest.importorskip("algovision")
    from benchmarks.smooth_python import bubble_until_sorted, peer_program

    x = torch.randn(3, 5)
    results = []
    for function in (peer_program("cpu"), lambda a: bubble_until_sorted(a, batched=True)):
        leaf = x.clone().requires_grad_()
        values, swaps = function(leaf)
        slope = torch.autograd.grad((values * torch.arange(5.0)).sum() + swaps.sum(), leaf)[0]
        results.append((values, swaps, slope))
    for theirs, ours in zip(*results, strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(soft_max(x, steepness=3.0), algovision.Max(3.0)(*x.unbind(-1)))
    torch.testing.assert_close(soft_min(x, steepness=3.0), algovision.Min(3.0)(*x.unbind(-1)))


def test_sigma_becomes_scale():
    sigma = 1e-4
    cut = math.sqrt(sigma * math.log(1 / 1e-4 - 1))
    assert math.isclose(StudentT(df=8, scale=0.358 * math.sqrt(sigma)).reach(1e-4), cut, rel_tol=2e-3)
    # A straight edge through the middle of the picture: where they are at 10 %, we should be too
    from algonet.render import Camera, FilteredCoverage, render_attributes

    side, sigma = 200, 1e-2
    corners = torch.tensor([[0.0, -50.0, 0.0], [-50.0, 0.0, 0.0], [0.0, 50.0, 0.0]])
    coverage = FilteredCoverage(StudentT(df=8, scale=1.06 * math.sqrt(sigma)), units="ndc")
    seen = render_attributes(
        corners, torch.tensor([[0, 1, 2]]), corners, Camera.orthographic((0.0, 0.0, 3.0), height=2.0), size=(side, side),
        coverage=coverage, conorm=Probabilistic(), backend="reference",
    ).silhouette[side // 2]  # fmt: skip
    distance = math.sqrt(sigma * math.log(9))
    for place, expected in ((distance, 0.1), (-distance, 0.9)):
        assert abs(float(seen[round((place + 1) * side / 2)]) - expected) < 0.02


def test_softras_silhouette():
    from benchmarks.render import CAMERA, dense_silhouette

    from algonet.render import EuclideanCoverage, icosphere, render_attributes

    ball, side = icosphere(1, 0.9), 24
    # Ours fades a face that turns edge-on, theirs does not: the faces that look at the camera
    towards = torch.nn.functional.normalize(CAMERA.position, dim=-1)
    ball = ball.replace(faces=ball.faces[ball.face_normals() @ towards > 0.5])
    coverage = EuclideanCoverage(Logistic(4 / (side**2 * 1e-4)), squared=True)
    ours = render_attributes(
        ball.vertices, ball.faces, ball.vertices, CAMERA, size=(side, side), coverage=coverage, conorm=Probabilistic()
    ).silhouette
    theirs = dense_silhouette(ball.vertices, ball.faces, side).reshape(side, side)
    torch.testing.assert_close(ours, theirs, atol=1e-4, rtol=1e-4)


if __name__ == "__main__":
    for name in sys.argv[1:]:
        show_outputs(ROOT / "docs" / name)
