"""The package is built as its map says: imports go one way, caches are of one kind, torch is asked in one place."""

from __future__ import annotations

import ast
import importlib
import io
import re
import tokenize
from functools import lru_cache
from pathlib import Path

import pytest

import algonet
from algonet.core.cache import caches

ROOT = Path(algonet.__file__).parent
MAP = Path(__file__).parents[1] / "docs" / "architecture.md"

#: Whoever stands above the domains and may use all of them; `nn` below `explain`, which explains its layers.
ABOVE = {"cli", "apps", "fit", "ran", "explain", "ranking", "__main__", ""}
BELOW = {"core": set(), "relax": {"core"}}
#: Layers that hand on what an application defines, by name and when first touched; type checkers see an import.
HANDED_ON = {("render", "fit"), ("ifs", "fit")}


@lru_cache(maxsize=2)
def graph(checkers: bool = False) -> dict[str, set[str]]:
    """Module -> modules it imports, lazy imports inside functions counted, imports for type checkers if `checkers`.

    Strictly: who takes a name from a package, be it a module's, needs the package's `__init__`, and so does who imports
    from inside a package that it does not lie in.
    """
    files = {}
    for file in ROOT.rglob("*.py"):
        parts = file.relative_to(ROOT).with_suffix("").parts
        files[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = file
    found = {name: _imports(name, file, set(files), checkers) for name, file in files.items()}
    return {
        name: {other for other in imported if (name, part(other)) not in HANDED_ON} for name, imported in found.items()
    }


def _imports(name: str, file: Path, known: set[str], checkers: bool = False) -> set[str]:
    tree = ast.parse(file.read_text(encoding="utf-8"))
    package = name if file.name == "__init__.py" else name.rpartition(".")[0]
    for_checkers: set[ast.AST] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            for_checkers.update(*(ast.walk(statement) for statement in node.body))
    found: set[str] = set()
    for node in ast.walk(tree):
        if node in for_checkers and not checkers:
            continue
        if isinstance(node, ast.Import):
            found.update(alias.name.removeprefix("algonet").lstrip(".") for alias in node.names if _ours(alias.name))
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                up = package.split(".") if package else []
                base = ".".join([*up[: len(up) - node.level + 1], *([base] if base else [])])
            elif _ours(base):
                base = base.removeprefix("algonet").lstrip(".")
            else:
                continue
            for alias in node.names:
                inner = f"{base}.{alias.name}".lstrip(".")
                found.update((inner, base))
    found.update(package for module in found & known for package in _entered(name, module))
    return {module for module in found if module in known and module != name}


def _entered(importer: str, module: str) -> list[str]:
    """The packages around a module that are not around its importer, too."""
    parts = module.split(".")
    around = [".".join(parts[:count]) for count in range(1, len(parts))]
    return [package for package in around if not f"{importer}.".startswith(f"{package}.")]


def _ours(name: str) -> bool:
    return name == "algonet" or name.startswith("algonet.")


def part(module: str) -> str:
    return module.partition(".")[0]


def test_imports_go_one_way():
    wrong = []
    for module, imported in graph().items():
        for other in imported:
            here, there = part(module), part(other)
            if here == there or here in ABOVE:
                continue
            allowed = BELOW.get(here, {"core", "relax"})
            if there not in allowed:
                wrong.append(f"{module} imports {other}")
    assert not wrong


def test_there_are_no_cycles():
    assert not cycles(graph())


def test_imports_for_checkers_go_one_way():
    assert not cycles(graph(checkers=True))


def test_cycles_are_found(tmp_path):
    assert cycles({"a": {"b"}, "b": {"c"}, "c": {"b"}, "d": {"a"}}) == [{"b", "c"}]
    module = tmp_path / "module.py"
    for line in ("from . import other", "from algonet.sorting import other", "import algonet.sorting.other"):
        module.write_text(line, encoding="utf-8")
        own = {"sorting.other"} if line.startswith("import") else {"sorting", "sorting.other"}
        assert _imports("sorting.module", module, {"sorting", "sorting.module", "sorting.other"}) == own
    module.write_text("from algonet.relax.exits import Tent", encoding="utf-8")
    assert _imports("sorting.module", module, {"relax", "relax.exits"}) == {"relax", "relax.exits"}


def cycles(edges: dict[str, set[str]]) -> list[set[str]]:
    """Sets of modules that reach each other."""
    reach: dict[str, set[str]] = {}
    for start in edges:
        seen, waiting = set(), [start]
        while waiting:
            for other in edges.get(waiting.pop(), ()):
                if other not in seen:
                    seen.add(other)
                    waiting.append(other)
        reach[start] = seen
    found: list[set[str]] = []
    for start in edges:
        if start in reach[start]:
            cycle = {other for other in reach[start] if start in reach.get(other, ())}
            if cycle not in found:
                found.append(cycle)
    return found


def _using(pattern: str, home: str) -> list[str]:
    found = []
    for file in ROOT.rglob("*.py"):
        name = file.relative_to(ROOT).as_posix()
        code = "\n".join(line.partition("#")[0] for line in file.read_text(encoding="utf-8").splitlines())
        if name != home and re.search(pattern, code):
            found.append(name)
    return found


def test_every_cache_is_of_one_kind():
    assert not _using(r"\blru_cache\b|functools\.cache\b|@cache\b", "core/cache.py")


#: Dictionaries and lists of modules that functions write to, and what bounds them. Whatever is kept to save work is a
#: `core.cache.Cache`.
FILLED = {
    "apps/play/server.py:_drawn": "one for each room",
    "core/operation.py:OPERATIONS": "one for each operation",
    "core/codegen/store.py:_private": "one for each process",
    "core/tracing.py:_FOUND": "one for each private part",
    "render/meshes.py:_PREVIEWS": "one function",
}


def test_nothing_is_kept_without_a_bound():
    found = set()
    for file in ROOT.rglob("*.py"):
        tree = ast.parse(file.read_text(encoding="utf-8"))
        names = {name for statement in tree.body for name in _empty_dictionaries(statement)}
        for node in ast.walk(tree):
            stored = isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store)
            filled = isinstance(node, ast.Attribute) and node.attr in (
                "setdefault",
                "update",
                "add",
                "append",
                "extend",
            )
            if (stored or filled) and ast.unparse(node.value) in names:
                found.add(f"{file.relative_to(ROOT).as_posix()}:{ast.unparse(node.value)}")
    assert found == set(FILLED)


def _empty_dictionaries(statement: ast.stmt) -> list[str]:
    if not isinstance(statement, (ast.Assign, ast.AnnAssign)) or statement.value is None:
        return []
    made = ast.unparse(statement.value)
    if not re.fullmatch(r"\{\}|\[\]|(\w+\.)?(dict|OrderedDict|defaultdict|set|list|deque)\(.*\)", made):
        return []
    targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
    return [target.id for target in targets if isinstance(target, ast.Name)]


#: Every cache, and why it is not a part of another.
CACHES = {
    "plans": "how backends run the calls of a signature, and what the checks of public functions found",
    "values of functions": "functions that are `cached`",
    "tensors that calls repeat": "weighed by bytes, made outside of modes",
    "identity of classes": "asked of every option of every call: keys of one word",
    "interned options": "an option must stay itself as long as settings hold it",
    "canonical options": "the same",
    "schedules of smooth programs": "weighed by bytes",
}


def test_every_cache_is_bounded_and_listed():
    for module in graph():
        # Kernels load compilers
        if part(module) in ("core", "relax", "sorting", "ifs", "while_lang", "speech") and ".kernels" not in module:
            importlib.import_module(f"algonet.{module}".rstrip("."))
    listed = {cache.name: cache for cache in caches()}
    assert listed
    for name, cache in listed.items():
        assert 1 <= cache.most <= 4096, name
    declared = re.compile(r"\b(?:Tensor)?Cache\(\s*\"([^\"]+)\"")
    made = [name for file in ROOT.rglob("*.py") for name in declared.findall(file.read_text("utf-8"))]
    assert sorted(made) == sorted(CACHES)


def test_bounds_of_caches_are_written_where_they_are_made():
    """Also of those that live in kernels' modules, which load compilers."""
    wrong = []
    for file in set(ROOT.rglob("*.py")) - {ROOT / "core" / "cache.py"}:
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.Call) or ast.unparse(node.func) not in ("Cache", "TensorCache"):
                continue
            values = [*node.args, *(k.value for k in node.keywords if k.arg == "most")]
            bounds = [v.value for v in values if isinstance(v, ast.Constant) and isinstance(v.value, int)]
            if not any(1 <= bound <= 4096 for bound in bounds):
                wrong.append(f"{file.relative_to(ROOT)}:{node.lineno}")
    assert not wrong


def test_torch_is_asked_in_one_place():
    pattern = r"_functorch|is_compiling\(|is_torchdynamo_compiling|_len_torch_dispatch_stack"
    assert not _using(pattern, "core/tracing.py")


#: What Windows lacks, wherever it is used -> how it is kept from being called there.
POSIX = {
    "apps/play/sandbox.py resource": "ImportError is caught",
    "core/cache.py register_at_fork": "asked for with hasattr",
    "core/codegen/store.py register_at_fork": "asked for with hasattr",
    "core/codegen/store.py getuid": "behind os.name",
    "core/codegen/store.py grp": "behind os.name",
    "core/codegen/store.py pwd": "behind os.name",
    "core/memory.py resource": "ImportError is caught",
    "core/memory.py sysconf": "AttributeError is caught, or reached only beyond `resource`",
}
ABSENT = re.compile(
    r"\b(?:os\.(fork|getuid|geteuid|getgid|killpg|setsid|sysconf|set_blocking|register_at_fork|mkfifo|statvfs|nice|uname|fchmod"
    r"|O_TMPFILE|O_DIRECTORY|O_NOFOLLOW|wait\w*|posix_\w+)"
    r"|signal\.(SIGKILL|SIGHUP|SIGALRM|SIGUSR\d|SIGQUIT|SIGPIPE|SIGXFSZ|setitimer|alarm|pthread_\w+)"
    r"|import (fcntl|resource|pwd|grp|termios|tty|pty|syslog))\b"
)


def test_what_windows_lacks_is_guarded():
    """A new use must be guarded, and said here."""
    found = set()
    for file in ROOT.rglob("*.py"):
        for match in ABSENT.finditer(file.read_text(encoding="utf-8")):
            found.add(f"{file.relative_to(ROOT).as_posix()} {next(filter(None, match.groups()))}")
    assert found == set(POSIX)


def test_the_map_is_the_tree():
    """docs/architecture.md names every folder, and every file of core/, and nothing that is not there."""
    block = MAP.read_text(encoding="utf-8").split("```text\nsrc/algonet/\n")[1].split("```")[0]
    named = set(re.findall(r"^  (\w+)/", block, flags=re.M))
    there = {p.name for p in ROOT.iterdir() if (p / "__init__.py").exists()}
    assert named == there, "write it into the map"
    core = set(re.findall(r"^    (\w+(?:\.py|/))", block, flags=re.M))
    files = {p.name for p in (ROOT / "core").glob("*.py")} | {
        f"{p.name}/" for p in (ROOT / "core").iterdir() if (p / "__init__.py").exists()
    }
    assert core == files - {"__init__.py"}, "write it into the map"


def test_the_table_of_formulas_names_files_that_exist():
    """A name without a folder lies where the one before it does."""
    table = MAP.read_text(encoding="utf-8").split("## Where a formula is")[1].split("\n## ")[0]
    rows = [line.split("|")[2] for line in table.splitlines() if ".py`" in line]
    assert len(rows) > 10
    for row in rows:
        folder = ""
        for name in re.findall(r"`([\w/]+\.py)`", row):
            folder = name.rpartition("/")[0] or folder
            assert (ROOT / folder / Path(name).name).is_file(), name


#: Layers stand below, applications above; `apps` uses what every user can.
LAYERS = {"core", "relax", "sorting", "ranking", "while_lang", "smooth_python", "ifs", "render", "nn"}
#: Tokens of code, without comments and docstrings. To add, take away; who raises a number says in the commit which
#: capability it paid for. The house is to come down to 310,000 tokens in 220 files, of which layers 245,000 and core 16,000.
MOST_TOKENS = {"library": 374_800, "layers": 294_500, "core": 20_400, "apps": 22_500}
MOST_FILES = 226
MOST_CACHES = 10
#: No longer file; no fuller folder.
LONGEST, FULLEST = 500, 20

PROSE = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}
DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def tokens(text: str) -> int:
    """Tokens of code, without comments, docstrings and layout."""
    docstrings = {
        (node.body[0].lineno, node.body[0].col_offset)
        for node in ast.walk(ast.parse(text))
        if isinstance(node, DOCUMENTED) and ast.get_docstring(node) is not None
    }
    read = tokenize.generate_tokens(io.StringIO(text).readline)
    return sum(token.type not in PROSE and token.start not in docstrings for token in read)


def test_tokens_are_counted():
    assert tokens('"""Docs."""\n\n# A comment\nx = f(1)  # another\n') == 6
    assert tokens('def f():\n    """Docs."""\n    return "text"\n') == 7


def test_the_house_is_within_its_budget():
    count = {file.relative_to(ROOT): tokens(file.read_text(encoding="utf-8")) for file in ROOT.rglob("*.py")}
    apps = {path for path in count if path.parts[0] == "apps"}
    used = {
        "library": sum(n for path, n in count.items() if path not in apps),
        "layers": sum(n for path, n in count.items() if path.parts[0] in LAYERS),
        "core": sum(n for path, n in count.items() if path.parts[0] == "core"),
        "apps": sum(count[path] for path in apps),
    }
    assert {part: n for part, n in used.items() if n > MOST_TOKENS[part]} == {}, "to add, take away"
    assert len(count) - len(apps) <= MOST_FILES
    assert len(CACHES) <= MOST_CACHES
    long = [str(path) for path in count if len((ROOT / path).read_text("utf-8").splitlines()) > LONGEST]
    full = [str(folder) for folder in {path.parent for path in count} if len([*(ROOT / folder).glob("*.py")]) > FULLEST]
    assert (long, full) == ([], [])


def test_applications_use_public_names_only():
    """A user could have written them: what they import is a package's own name, or a module whose pages are documented."""
    wrong = []
    for file in (ROOT / "apps").rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and not node.level and _ours(node.module or ""):
                base = (node.module or "").removeprefix("algonet").lstrip(".")
                if part(base) == "apps":
                    continue
                names = getattr(importlib.import_module(node.module or ""), "__all__", None)
                if base not in DRAWN and names is not None:
                    wrong += [f"{file.name}: {base}.{alias.name}" for alias in node.names if alias.name not in names]
                elif base not in DRAWN:
                    wrong.append(f"{file.name}: {base}")
    assert not wrong


#: Modules behind the packages that applications draw with.
DRAWN = {"", "while_lang.plots", "ran.config", "ran.losses", "ran.networks", "ran.schedules"}


def test_no_kernel_lists_names_by_hand():
    """What is not specialised follows from the kernel's own signature."""
    assert not _using(r"do_not_specialize=|triton\.jit\(", "core/codegen/triton_math.py")


#: What is private in torch, Numba and Triton stands in one file each.
HOMES = {
    r"torch\._(?!_version)|forward_ad\._|_functorch": "core/tracing.py",
    r"numba\._|numba\.core|llvmlite\.binding": "core/codegen/numba_private.py",
    r"triton\.runtime|triton import knobs": "core/launch.py",
}


@pytest.mark.parametrize("pattern", HOMES)
def test_private_parts_of_others_stand_in_one_file(pattern):
    assert not _using(pattern, HOMES[pattern])
