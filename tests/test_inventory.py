"""Every public name with its signature, pinned in inventory.txt: what users see changes on purpose or not at all.

Update: PYTHONPATH=tests python -m test_inventory
"""

from __future__ import annotations

import difflib
import importlib
import inspect
import pkgutil
import re
from pathlib import Path
from typing import Any

import algonet

RECORD = Path(__file__).with_name("inventory.txt")
UPDATE = "PYTHONPATH=tests python -m test_inventory"
#: Not for import by users: the command, and what is shared by the domains.
PRIVATE = {"apps", "cli", "core"}


def packages() -> list[str]:
    """The package itself and every public package in it."""
    found = [m.name for m in pkgutil.iter_modules(algonet.__path__) if m.ispkg and m.name not in PRIVATE]
    return ["algonet", *(f"algonet.{name}" for name in sorted(found))]


def entry(value: Any) -> str:
    """What a user must know of a name to call it, in one line."""
    if inspect.isclass(value):
        return f"class{_signature(value)}"
    if callable(value):
        return f"def{_signature(value)}"
    if inspect.ismodule(value):
        return "module"
    return type(value).__name__


def _signature(value: Any) -> str:
    try:
        signature = inspect.signature(value)
    except (TypeError, ValueError):  # exceptions and some tuples have none
        return "(...)"
    parameters = [p.replace(default=...) if _hidden(p.default) else p for p in signature.parameters.values()]
    text = str(signature.replace(parameters=parameters)).replace("Ellipsis", "...")
    text = re.sub(r"ForwardRef\(('[^']*')[^)]*\)", r"\1", text)  # how annotations of named tuples are stored
    return re.sub(r" at 0x[0-9a-f]+", "", text).replace("'", "")


def _hidden(default: Any) -> bool:
    """A default that is not shown: what a long one holds is tuned now and then, and a set prints in any order."""
    return default is not inspect.Parameter.empty and (len(repr(default)) > 60 or isinstance(default, (set, frozenset)))


def methods(value: Any) -> list[str]:
    """The public methods that a class defines itself (dataclass and tuple fields are in its signature)."""
    if not inspect.isclass(value) or not value.__module__.startswith("algonet"):
        return []
    lines = []
    for name, member in sorted(vars(value).items()):
        if name.startswith("_"):
            continue
        if isinstance(member, property):
            lines.append(f"    {name}: property")
        elif isinstance(member, (staticmethod, classmethod)) or inspect.isfunction(member):
            lines.append(f"    {name}{_signature(getattr(value, name))}")
    return lines


def inventory() -> str:
    """All public names, a line each, with the methods of classes below them."""
    lines: list[str] = []
    described: set[int] = set()
    for package in packages()[1:] + packages()[:1]:
        module = importlib.import_module(package)
        lines.append(f"\n[{package}]")
        for name in sorted(module.__all__):
            value = getattr(module, name)
            # The root repeats names of the domains, and layers those of applications: there the name alone is the promise
            again = package in ("algonet", "algonet.render", "algonet.ifs") and id(value) in described
            lines.append(name if again else f"{name}: {entry(value)}")
            if not again:
                lines += methods(value)
            described.add(id(value))
    return "\n".join(lines).lstrip("\n") + "\n"


def test_public_names_are_as_recorded():
    old, new = RECORD.read_text(encoding="utf-8"), inventory()
    changes = [
        line
        for line in difflib.unified_diff(old.splitlines(), new.splitlines(), "recorded", "now", n=0, lineterm="")
        if line[:1] in "+-"
    ]
    assert not changes, "public names changed:\n" + "\n".join(changes) + f"\nif that is meant, run: {UPDATE}"


def test_every_package_lists_its_names():
    for package in packages():
        module = importlib.import_module(package)
        assert len(set(module.__all__)) == len(module.__all__), package
        assert module.__doc__, package


def test_every_public_name_is_described():
    bare = []
    for package in packages()[1:]:
        module = importlib.import_module(package)
        for name in module.__all__:
            value = getattr(module, name)
            if (inspect.isclass(value) or inspect.isroutine(value)) and not inspect.getdoc(value):
                bare.append(f"{package}.{name}")
    assert not bare, f"without a docstring: {', '.join(bare)}"


if __name__ == "__main__":
    RECORD.write_text(inventory(), encoding="utf-8")
    print(f"wrote {RECORD}")
