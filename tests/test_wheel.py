"""Packaging: a pure wheel with everything inside, that works in an environment which has never seen the source tree."""

from __future__ import annotations

import ast
import importlib.metadata
import os
import re
import subprocess
import sys
import sysconfig
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "algonet"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
#: Read at run time, and no Python.
DATA = [
    "algonet/py.typed",
    "algonet/apps/gallery/gallery.html",
    "algonet/apps/gallery/render.md",
    "algonet/apps/play/style.css",
    "algonet/while_lang/programs/multiply.while",
]


def _run(command: list[str], **options) -> str:
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, **options)
    assert done.returncode == 0, f"{' '.join(command)}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def built(tmp_path_factory) -> tuple[Path, Path]:
    """The source distribution, and the wheel built from it and not from the tree: (sdist, wheel)."""
    folder = tmp_path_factory.mktemp("dist")
    _run([sys.executable, "-m", "hatchling", "build", "-t", "sdist", "-d", str(folder)], cwd=ROOT)
    sdist = next(folder.glob("*.tar.gz"))
    with tarfile.open(sdist) as archive:
        archive.extractall(folder, filter="data")
    unpacked = next(path for path in folder.iterdir() if path.is_dir())
    _run([sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)], cwd=unpacked)
    return sdist, next(folder.glob("*.whl"))


def _source_files() -> set[str]:
    paths = (path.relative_to(ROOT / "src").as_posix() for path in PACKAGE.rglob("*") if path.is_file())
    return {path for path in paths if "__pycache__" not in path}


def test_is_pure_python_for_every_platform(built):
    assert built[1].name.endswith("-py3-none-any.whl")


def test_holds_what_is_read_at_run_time_and_nothing_else(built):
    with zipfile.ZipFile(built[1]) as wheel:
        names = wheel.namelist()
        metadata = wheel.read(next(name for name in names if name.endswith("METADATA"))).decode()
    assert _source_files() <= set(names)
    assert set(DATA) <= set(names)
    assert not [name for name in names if not name.startswith(("algonet/", "algonet_torch-"))]
    assert "License-File: LICENSE" in metadata
    assert "Typing :: Typed" in metadata


def test_source_distribution_can_be_built_and_tested(built):
    with tarfile.open(built[0]) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {f"src/{name}" for name in _source_files()} <= names
    assert {"pyproject.toml", "README.md", "LICENSE", "tests/conftest.py", "docs/index.md"} <= names
    assert not [name for name in names if name.startswith((".venv", "site/", "gallery/")) or "__pycache__" in name]


@pytest.mark.slow
def test_works_in_an_environment_of_its_own(built, tmp_path):
    """Installed from the wheel into a new environment, which sees this one's dependencies but not its algonet."""
    home = tmp_path / "environment"
    _run([sys.executable, "-m", "venv", "--without-pip", str(home)])
    python = home / "bin" / "python"
    install = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet", "--no-deps", "--no-index"]
    _run([*install, str(built[1])])
    site = Path(_run([str(python), "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"]).strip())
    # A folder named in a .pth file is searched, but its own .pth files, and with them the editable install, are not
    (site / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    # No compiler and no repository in sight
    environment = {"PATH": str(home / "bin"), "HOME": str(tmp_path), "ALGONET_CACHE": os.environ["ALGONET_CACHE"]}
    options = {"cwd": tmp_path, "env": environment}
    code = (
        "import algonet, torch, sys; print(algonet.__file__)\n"
        "from algonet.apps import gallery; assert '<nav>' in gallery.page([])\n"
        "x = torch.tensor([[3.0, 1.0, 2.0]], requires_grad=True)\n"
        "algonet.soft_sort(x, relax=algonet.Logistic(1e4), backend='numba').values.sum().backward()\n"
        "print(x.grad.tolist())\n"
        f"assert not [p for p in sys.path if {str(ROOT / 'src')!r} in p], sys.path"
    )
    where, gradient = _run([str(python), "-c", code], **options).splitlines()
    assert where.startswith(str(site)), where
    assert gradient == "[[1.0, 1.0, 1.0]]"
    command = str(home / "bin" / "algonet")
    assert _run([command, "--version"], **options).strip() == PROJECT["version"]
    assert "12" in _run([command, "while", "run", "multiply", "x1=3", "x2=4"], **options)


def test_imports_are_declared_dependencies():
    """Whatever the package imports from elsewhere is installed with it, or with an extra."""
    extras = PROJECT["optional-dependencies"]
    declared = [*PROJECT["dependencies"], *(line for lines in extras.values() for line in lines)]
    names = {re.match(r"[\w-]+", line)[0].lower().replace("-", "_") for line in declared}
    # Pillow's name in Python; what numba and (where there is a GPU) torch bring; fabric under its other name
    names |= {"PIL", "llvmlite", "triton", "lightning", "algonet", *sys.stdlib_module_names}
    used: dict[str, str] = {}
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                used |= {alias.name.partition(".")[0]: path.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
                used[node.module.partition(".")[0]] = path.name
    missing = {name: where for name, where in used.items() if name not in names}
    assert not missing


def test_the_version_is_written_the_same_everywhere():
    import algonet

    citation = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert algonet.__version__ == PROJECT["version"] == re.search(r"^version: (.+)$", citation, re.MULTILINE)[1]
    assert PROJECT["version"] in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")


def test_the_conda_recipe_asks_for_the_same():
    recipe = (ROOT / "conda" / "recipe.yaml").read_text(encoding="utf-8")
    listed = {
        name: bound
        for line in re.findall(r"^  (?:host|run|run_constraints): \[(.+)\]$", recipe, re.MULTILINE)
        for name, bound in re.findall(r'"([\w-]+) >=([\d.]+)"', line)
    }
    names = {"torch": "pytorch", "matplotlib": "matplotlib-base"}
    lines = _required("cli")
    wanted = {names.get(n, n): b for n, b in (re.fullmatch(r"([\w-]+)>=([\d.]+)", line).groups() for line in lines)}
    wanted["python"] = PROJECT["requires-python"].removeprefix(">=")
    assert {name: _numbers(listed[name]) for name in wanted} == {name: _numbers(b) for name, b in wanted.items()}
    assert f'version: "{PROJECT["version"]}"' in recipe
    assert f'"algonet = {PROJECT["scripts"]["algonet"]}"' in recipe


def test_the_lock_file_is_of_these_requirements_and_pins():
    """Where this fails, `uv lock` makes it again, and `uv export` says what changes in constraints.txt."""
    packages = tomllib.loads((ROOT / "uv.lock").read_text("utf-8"))["package"]
    own = next(package for package in packages if package["name"] == PROJECT["name"])
    assert own["version"] == PROJECT["version"]

    def read(line: str) -> tuple[str, str]:
        name, bounds = re.match(r"([\w-]+)(?:\[[\w,]+\])?([^;]*)", line).groups()
        return name.lower().replace("_", "-"), bounds.strip()

    wanted = {
        read(line) for lines in (PROJECT["dependencies"], *PROJECT["optional-dependencies"].values()) for line in lines
    }
    locked = {(line["name"], line.get("specifier", "")) for line in own["metadata"]["requires-dist"]}
    assert locked == wanted
    groups = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["dependency-groups"]
    for name, lines in own["metadata"]["requires-dev"].items():
        own_lines = {read(line) for line in groups[name] if isinstance(line, str)}
        assert own_lines <= {(line["name"], line.get("specifier", "")) for line in lines}
    pins = re.findall(r"^([\w.-]+)==(\S+)", (ROOT / "constraints.txt").read_text("utf-8"), re.MULTILINE)
    versions = {package["name"]: package["version"] for package in packages}
    assert len(pins) > 100
    assert {n: v for n, v in pins if versions.get(re.sub(r"[._]", "-", n.lower()), v) != v} == {}


def _numbers(version: str) -> tuple[int, ...]:
    """3.0 is 3."""
    return tuple(int(part) for part in re.sub(r"(\.0)+$", "", version).split("."))


def test_install_lines_name_our_distribution():
    """`pip install algonet` would fetch another project; what an error or a page says must work."""
    texts = [
        *PACKAGE.rglob("*.py"),
        *(ROOT / "docs").rglob("*.md"),
        ROOT / "README.md",
        *(ROOT / "notebooks").glob("*.ipynb"),
    ]
    lines = [(path.name, line) for path in texts for line in path.read_text(encoding="utf-8").splitlines()]
    wrong = [found for found in lines if re.search(r"pip install ['\"]?algonet(?!-torch)", found[1])]
    assert not wrong
    named = {extra for _, line in lines for extra in re.findall(r"algonet-torch\[(\w+)\]|'\.\[(\w+)\]'", line)}
    assert {a or b for a, b in named} <= set(PROJECT["optional-dependencies"])


COPYLEFT = re.compile(r"\b(A?GPL|GNU (Affero )?General Public|EUPL|SSPL|CC-BY-SA)", re.IGNORECASE)


def _licence(name: str) -> str:
    metadata = importlib.metadata.metadata(name)
    kinds = [line for line in metadata.get_all("Classifier") or () if line.startswith("License ::")]
    first = (metadata.get("License") or "").strip().partition("\n")[0]  # some put the whole text there
    return "; ".join(filter(None, [metadata.get("License-Expression"), first, *kinds]))


def _closure(lines: list[str]) -> set[str]:
    """The distributions that requirements bring with them, as far as they are installed here."""
    from packaging.requirements import Requirement

    found: set[str] = set()
    waiting = [Requirement(line) for line in lines]
    while waiting:
        wanted = waiting.pop()
        name = wanted.name.lower().replace("_", "-")
        if name in found or (wanted.marker and not wanted.marker.evaluate({"extra": ""})):
            continue
        try:
            more = importlib.metadata.requires(name) or []
        except importlib.metadata.PackageNotFoundError:
            continue
        found.add(name)
        waiting += [Requirement(line) for line in more]
    return found


def test_licences():
    """Every distribution that `pip install` brings says under which licence, and none is copyleft."""
    licences = {name: _licence(name) for name in sorted(_closure(_required("cli")))}
    assert {"torch", "numba", "lark", "trimesh", "pillow", "typer", "rich", "matplotlib"} <= set(licences)
    assert all(licences.values()), licences
    assert not {name: text for name, text in licences.items() if COPYLEFT.search(text)}


@pytest.mark.slow
def test_works_however_python_is_called(tmp_path):
    """Without assertions and docstrings, with warnings as errors, in the C locale."""
    code = (
        "import warnings, torch\n"
        "import algonet\nfrom algonet import *\n"
        "x = torch.tensor([[3.0, 1.0, 2.0]], requires_grad=True)\n"
        "soft_sort(x, backend='reference').values.sum().backward()\n"
        "multiply = WhileProgram.library('multiply', Tent(), backend='reference')\n"
        "print(multiply(x1=torch.tensor(3.0), x2=torch.tensor(4.0)).item())\n"
        "print(SmoothRenderer(8, backend='reference')(icosphere(0), Camera.look_at((0.0, 0.0, 3.0))).rgb.shape)\n"
        "print(IFS.preset('koch', points=64)(8, backend='reference').shape)\n"
        "try: soft_sort([1, 2])\nexcept TypeError as error: print(error)\n"
    )
    environment = {**os.environ, "LC_ALL": "C", "LANG": "C", "PYTHONPATH": str(ROOT / "src"), "PYTHONUTF8": "0"}
    out = _run([sys.executable, "-OO", "-B", "-W", "error", "-c", code], cwd=tmp_path, env=environment)
    assert out.splitlines()[0] == "12.0"
    assert "got list; wrap it in torch.tensor" in out, "checks do not depend on assert"


#: Blocks the import of everything that `pip install algonet-torch` alone would not bring.
BLOCKER = """
import os, sys
blocked = set(os.environ["BLOCKED"].split(","))
class Without:
    def __init__(self, finder):
        self.finder = finder
    def find_spec(self, name, path=None, target=None):
        return None if name.partition(".")[0] in blocked else self.finder.find_spec(name, path, target)
sys.meta_path = [Without(finder) for finder in sys.meta_path]
"""


def _required(*extras: str) -> list[str]:
    """What `pip install 'algonet-torch[EXTRAS]'` asks for; extras may name others."""
    lines = [*PROJECT["dependencies"]]
    for extra in extras:
        for line in PROJECT["optional-dependencies"][extra]:
            more = re.fullmatch(r"algonet-torch\[(.+)\]", line)
            lines += _required(*more[1].split(",")) if more else [line]
    return lines


def _with_only(code: str, folder: Path, *extras: str) -> subprocess.CompletedProcess:
    """Run code where only the runtime dependencies, these extras, and what they bring, can be imported."""
    brought = _closure(_required(*extras)) | {"algonet-torch"}
    provided = importlib.metadata.packages_distributions()
    blocked = {
        name
        for name, distributions in provided.items()
        if not {d.lower().replace("_", "-") for d in distributions} & brought and name not in sys.stdlib_module_names
    }
    assert {"lightning_fabric", "tensorboard", "nicegui", "pytest"} <= blocked
    assert not {"torch", "numba", "lark", "algonet"} & blocked
    environment = {**os.environ, "BLOCKED": ",".join(blocked), "PYTHONPATH": str(ROOT / "src"), "ALGONET_QUIET": "1"}
    return subprocess.run(
        [sys.executable, "-c", BLOCKER + code], cwd=folder, env=environment, capture_output=True, text=True, timeout=300
    )


@pytest.mark.slow
def test_runtime_dependencies_suffice_for_layers(tmp_path):
    """Sort, render, WHILE, IFS, speech and @smooth with none of the extras; what needs one names it."""
    done = _with_only(
        "import torch, algonet\n"
        "print(algonet.soft_sort(torch.tensor([[3.0, 1.0]]), backend='reference').values.shape)\n"
        "camera = algonet.Camera.look_at((0.0, 0.0, 3.0))\n"
        "print(algonet.SmoothRenderer(8, backend='reference')(algonet.icosphere(0), camera).rgb.shape)\n"
        "program = algonet.WhileProgram.library('multiply', algonet.Tent(), backend='reference')\n"
        "print(program(x1=torch.tensor(3.0), x2=torch.tensor(4.0)).item())\n"
        "print(algonet.IFS.preset('koch', points=64)(8, backend='reference').shape)\n"
        "import algonet.ran, algonet.speech, algonet.explain\n"
        "from algonet import Mesh, __main__\n"
        "from algonet.while_lang import plots\n"
        "for call in (lambda: Mesh.load('a.obj'), lambda: plots.surfaces(None, None, None, (0.0, 1.0), 4, 9), __main__.main):\n"
        "    try: call()\n"
        "    except (ImportError, SystemExit) as error: print(error)\n",
        tmp_path,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    for extra in ("render", "plots", "cli"):
        assert f"pip install 'algonet-torch[{extra}]'" in done.stdout, done.stdout


@pytest.mark.slow
def test_the_command_needs_one_extra(tmp_path):
    done = _with_only(
        "from algonet import cli\n"
        "def command(*words):\n"
        "    sys.argv = ['algonet', *words]\n"
        "    try: cli.main()\n"
        "    except SystemExit as stopped: assert not stopped.code, (words, stopped.code)\n"
        "command('doctor', '--json')\n"
        "command('while', 'run', 'multiply', 'x1=3', 'x2=4')\n"
        "command('ifs', 'render', 'koch', '--size', '8', '--points', '50', '--out', 'koch.png')\n"
        "command('render', 'box', '--size', '8', '--backend', 'reference', '--out', 'box.png')\n"
        "command('speech', 'say', 'a', '--rate', '8', '--out', 'a.wav')\n",
        tmp_path,
        "cli",
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert {"koch.png", "box.png", "a.wav"} <= {path.name for path in tmp_path.iterdir()}


@pytest.mark.slow
def test_commands_name_the_extra_that_they_need(tmp_path):
    wanted = {"play --no-show": "play", "ran train run.toml": "train", "ran reconstruct run a.png": "train"}
    (tmp_path / "run.toml").write_text('kind = "ifs"\n[data]\nsize = 16\ntrain = 2\nvalidation = 1\ntest = 1\n')
    folder = tmp_path / "run" / "checkpoints" / "step-00000001"
    folder.mkdir(parents=True)
    for name in ("state.json", "model.safetensors", "training.safetensors"):
        (folder / name).write_text("{}")
    done = _with_only(
        "from algonet import cli\n"
        f"for words in {list(wanted)!r}:\n"
        "    sys.argv = ['algonet', *words.split()]\n"
        "    try: cli.main()\n"
        "    except SystemExit as stopped: print(stopped.code, file=sys.stderr, flush=True)\n",
        tmp_path,
        "cli",
    )
    lines = done.stderr.splitlines()
    assert len(lines) == 2 * len(wanted), done.stderr[-2000:]
    for extra, said, code in zip(wanted.values(), lines[::2], lines[1::2], strict=True):
        assert f"pip install 'algonet-torch[{extra}]'" in said
        assert code == "1"
