"""Promises of the documentation and the tests that hold them: tests/claims.toml lists both.

Of each page (a file, or the docstrings of a module's public names) it has `promises`, from a part of the sentence to the
test that would fail if it were false, and `plain`, sentences that use a word of promise and promise nothing. A new promise
fails here until it is listed; `PYTHONPATH=tests python -m test_claims` prints what is not.
"""

from __future__ import annotations

import ast
import functools
import importlib
import inspect
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

import algonet

ROOT = Path(__file__).parents[1]
CLAIMS: dict[str, dict] = tomllib.loads((ROOT / "tests" / "claims.toml").read_text("utf-8"))
FILES = [
    ROOT / "README.md",
    ROOT / "SECURITY.md",
    *(ROOT / "docs").glob("**/*.md"),
    *(ROOT / "src").glob("algonet/*/README.md"),
]
PAGES = [*sorted(str(file.relative_to(ROOT)) for file in FILES), *sorted({*algonet._NAMES})]

#: "any" promises where it speaks of all inputs: "on data of any scale", not "is there any".
PROMISE = re.compile(
    r"\b(?:never|always|not depend|independent of|exactly|(?:is|are|be|stays?) exact|C-infinity|whatever|no matter|guarantee\w*"
    r"|bit for bit|same bits|(?:at|for|in|of|on|takes?|to) any|any (?:floating|n|number|order|scale|shape|size|\w+ shapes?))\b"
    r"(?! more| other)",
    re.IGNORECASE,
)
#: Blocks of code, examples, comments, headings.
CODE = re.compile(r"^```[\s\S]*?^```|^>>> .*(?:\n(?!\s*$).*)*|<!--[\s\S]*?-->|^#+ .*$", re.MULTILINE)
#: An empty line, a bullet, a row of a table, a tag.
BLOCK = re.compile(r"\n\s*\n|\n(?=\s*(?:[-*|]|\d+\.)\s)|</?[a-z][^>]*>")


def sentences(text: str) -> Iterator[str]:
    for block in BLOCK.split(CODE.sub("", text)):
        yield from re.split(r"(?<=[.!?])\s+(?=[A-Z`*\"\[(_$])", " ".join(block.split()))


@functools.cache
def said(page: str) -> list[str]:
    if page.endswith(".md"):
        return list(sentences((ROOT / page).read_text("utf-8")))
    public = [value for _, value in sorted(inspect.getmembers(importlib.import_module(page))) if _is_own(value, page)]
    members = [m for c in public if inspect.isclass(c) for n, m in vars(c).items() if n[0] != "_" and _is_own(m, page)]
    return [s for value in dict.fromkeys([*public, *members]) for s in sentences(inspect.getdoc(value) or "")]


def _is_own(value: object, page: str) -> bool:
    return (inspect.isclass(value) or inspect.isroutine(value)) and value.__module__.startswith(page)


def unlisted(page: str) -> list[str]:
    listed = [*CLAIMS.get(page, {}).get("promises", {}), *CLAIMS.get(page, {}).get("plain", [])]
    found = [s for s in dict.fromkeys(said(page)) if PROMISE.search(s)]
    return [sentence for sentence in found if not any(part in sentence for part in listed)]


@functools.cache
def functions_of(file: str) -> set[str]:
    tree = ast.parse((ROOT / "tests" / file).read_text("utf-8"))
    return {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")}


@pytest.mark.parametrize("page", PAGES)
def test_promises_are_listed(page):
    assert not unlisted(page), "list it in tests/claims.toml with the test that holds it, or say a plain fact"


@pytest.mark.parametrize("page", CLAIMS)
def test_what_is_listed_is_said_and_tested(page):
    assert page in PAGES
    promises, plain = CLAIMS[page].get("promises", {}), CLAIMS[page].get("plain", [])
    text = "\n".join(said(page))
    assert not [part for part in promises if part not in text], "the page no longer says this"
    used = [sentence for sentence in said(page) if PROMISE.search(sentence)]
    assert not [part for part in plain if not any(part in sentence for sentence in used)], "not said, or not needed"
    missing = [
        test for test in promises.values() if test.partition("::")[2] not in functions_of(test.partition("::")[0])
    ]
    assert not missing, "there is no such test"


def test_the_words_are_found():
    """Promises of kinds that have been false before, and uses of the same words that promise nothing."""
    for promise in (
        "C-infinity in every vertex.",
        "It does not depend on the cut.",
        "On data of any scale.",
        "Never formed.",
    ):
        assert PROMISE.search(promise)
    for plain in ("Whether any element is live.", "Nobody is there any more.", "The exact median."):
        assert not PROMISE.search(plain)


if __name__ == "__main__":
    print("\n".join(f"{page}: {sentence}" for page in PAGES for sentence in unlisted(page)))
