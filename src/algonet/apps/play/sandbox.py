"""One's own `@smooth` function, run in a process of its own.

The page's text is code, so it is checked before it runs (one function, no import, no name or attribute beyond a short list).
It runs in a child with few built-ins, no room for files, bounded memory, and a time limit after which it is ended. The child
reads requests from standard input and answers on standard output, a line of JSON each.
"""

from __future__ import annotations

import ast
import builtins
import contextlib
import inspect
import json
import linecache
import math
import os
import subprocess
import sys
import tempfile
import threading
import warnings
from typing import Any

#: Bounds: characters of a function, seconds of one answer, bytes of the child's memory, points of a curve and their particles.
LARGEST, SECONDS, MEMORY, POINTS, PARTICLES = 4000, 20.0, 4 * 2**30, 121, 128
#: What the text may call or read besides its own names; `math.sin` and its kin come with `math`.
BUILTINS = (
    "abs",
    "min",
    "max",
    "range",
    "len",
    "float",
    "int",
    "round",
    "sum",
    "sorted",
    "enumerate",
    "zip",
    "bool",
    "list",
    "tuple",
)
ATTRIBUTES = {
    *(name for name in dir(math) if not name.startswith("_")),
    "append",
    "sum",
    "abs",
    "exp",
    "log",
    "mean",
    "sqrt",
}
FILE = "your function"


def check(source: str) -> str:
    """The name of the one function that `source` defines; raises ValueError naming the line of what is not allowed."""
    if len(source) > LARGEST:
        raise ValueError(f"functions here have at most {LARGEST} characters, this one has {len(source)}.")
    try:
        tree = ast.parse(source, FILE)
    except SyntaxError as error:
        raise ValueError(f"line {error.lineno}: {error.msg}.") from None
    functions = [node for node in tree.body if isinstance(node, ast.FunctionDef)]
    if len(functions) != 1 or len(tree.body) != 1:
        raise ValueError("write one function, and nothing beside it.")
    for node in ast.walk(functions[0]):
        line = getattr(node, "lineno", 1)
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            raise ValueError(f"line {line}: nothing is imported here; `math` is there.")
        if isinstance(node, ast.Attribute) and node.attr not in ATTRIBUTES:
            raise ValueError(f"line {line}: `.{node.attr}` is not available here.")
        if isinstance(node, ast.Name) and "__" in node.id:
            raise ValueError(f"line {line}: names with two underscores are not available here.")
    for decorator in functions[0].decorator_list:
        if not (isinstance(decorator, ast.Name) and decorator.id == "smooth"):
            raise ValueError(
                f"line {decorator.lineno}: the only decorator is @smooth; options are set beside the editor."
            )
    arguments = functions[0].args
    if not arguments.args or arguments.vararg or arguments.kwonlyargs or arguments.kwarg or arguments.posonlyargs:
        raise ValueError("the function takes one to four plain arguments, which become sliders.")
    if len(arguments.args) > 4:
        raise ValueError(f"the function takes at most four arguments, this one takes {len(arguments.args)}.")
    return functions[0].name


def arguments_of(source: str) -> list[str]:
    """Names of the function's arguments."""
    check(source)
    function = ast.parse(source).body[0]
    assert isinstance(function, ast.FunctionDef)
    return [argument.arg for argument in function.args.args]


class Worker:
    """The child of one visitor: started when first asked, ended when it takes too long, started again at the next question."""

    def __init__(self, seconds: float = SECONDS):
        self._seconds, self._child, self._lock = seconds, None, threading.Lock()

    def ask(self, request: dict[str, Any]) -> dict[str, Any]:
        """The child's answer; raises ValueError with what the function did wrong, or that it took too long."""
        check(request["source"])
        with self._lock:
            child = self._child if self._child is not None and self._child.poll() is None else self._start()
            assert child.stdin is not None
            assert child.stdout is not None
            timer = threading.Timer(self._seconds, child.kill)
            timer.start()
            try:
                child.stdin.write(json.dumps(request) + "\n")
                child.stdin.flush()
                line = child.stdout.readline()
            except OSError:
                line = ""
            finally:
                timer.cancel()
            if not line:
                child.kill()
                child.wait()
                raise ValueError(
                    f"the function was ended: it took more than {self._seconds:g} seconds, or too much memory."
                )
        answer = json.loads(line)
        if "error" in answer:
            raise ValueError(answer["error"])
        return answer

    def close(self) -> None:
        """End the child."""
        child, self._child = self._child, None
        if child is not None:
            child.kill()
            child.communicate()

    def _start(self) -> subprocess.Popen:
        kept = {
            name: os.environ[name]
            for name in ("PATH", "PYTHONPATH", "ALGONET_CACHE", "HOME", "LANG")
            if name in os.environ
        }
        self._child = subprocess.Popen(
            [sys.executable, "-m", "algonet.apps.play.sandbox"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, cwd=tempfile.gettempdir(),
            env={**kept, "ALGONET_QUIET": "1", "OMP_NUM_THREADS": "1"},
        )  # fmt: skip
        return self._child


def run(request: dict[str, Any]) -> dict[str, Any]:
    """The function along one argument and at a point: as written, smooth, by particles where states are merged far apart."""
    import torch

    from algonet.relax import Logistic
    from algonet.smooth_python import Particles, smooth

    source, at, along = request["source"], request["at"], request["along"]
    name = check(source)
    linecache.cache[FILE] = (len(source), None, source.splitlines(keepends=True), FILE)
    allowed = {key: getattr(builtins, key) for key in BUILTINS}
    scope: dict[str, Any] = {
        "__builtins__": allowed,
        "__name__": FILE,
        "math": math,
        "smooth": lambda function: function,
    }
    exec(compile(source, FILE, "exec"), scope)
    function: Any = smooth(scope[name])
    options: dict[str, Any] = {"batched": True, "relax": Logistic(request["steepness"]), "backend": "reference"}
    axis = torch.linspace(request["low"], request["high"], POINTS)
    grid = [axis if key == along else torch.full_like(axis, value) for key, value in at.items()]
    leaves = [torch.tensor([float(value)], requires_grad=True) for value in at.values()]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with torch.no_grad():
            ys = _number(function(*grid, **options)).expand(POINTS)
            paths = _number(function(*grid, **options, paths=Particles(PARTICLES))).expand(POINTS)  # pyright: ignore[reportCallIssue]
        value = _number(function(*leaves, **options))
    note = str(caught[0].message) if caught else ""
    far = float((paths - ys).abs().max()) > 0.1 * float(paths.max() - paths.min())
    if far and not note:
        note = "The mean of the states lies far from the mean over the program's paths, which is drawn beside it."
    slopes = (
        torch.autograd.grad(value.sum(), leaves, allow_unused=True) if value.requires_grad else [None] * len(leaves)
    )
    crisp = [_crisp(function, [x if key == along else v for key, v in at.items()]) for x in axis.tolist()]
    return {
        "xs": axis.tolist(), "smooth": ys.tolist(), "crisp": crisp, "particles": paths.tolist() if far else None, "note": note,
        "value": float(value.detach()), "written": _crisp(function, [*at.values()]),
        "slopes": {key: 0.0 if slope is None else float(slope) for key, slope in zip(at, slopes, strict=True)},
    }  # fmt: skip


def _number(result: Any) -> Any:
    import torch

    if isinstance(result, (int, float)):
        return torch.tensor(float(result))
    if not isinstance(result, torch.Tensor) or result.ndim > 1:
        raise ValueError("return one number.")
    return result


def _crisp(function: Any, values: list[float]) -> float | None:
    with contextlib.suppress(ArithmeticError, ValueError, IndexError):
        result = float(function.crisp(*values))
        return result if math.isfinite(result) else None
    return None


def _where(error: Exception) -> str:
    """What went wrong, with the line of the visitor's text if one is known."""
    lines = [frame.lineno for frame in inspect.getinnerframes(error.__traceback__) if frame.filename == FILE]  # pyright: ignore[reportArgumentType]
    said = " ".join(str(error).split()) or type(error).__name__
    return said if not lines or "line " in said else f"line {lines[-1]}: {said}"


def _confine() -> None:
    """No files, bounded memory: for the rest of this process's life."""
    try:
        import resource
    except ImportError:  # Windows
        return
    for limit, most in ((resource.RLIMIT_FSIZE, 0), (resource.RLIMIT_AS, MEMORY), (resource.RLIMIT_CORE, 0)):
        resource.setrlimit(limit, (most, most))


def main() -> None:
    """Answer requests until standard input ends."""
    import importlib

    import torch

    importlib.import_module("algonet.smooth_python")  # before memory is bounded
    torch.set_num_threads(1)
    _confine()
    answers, sys.stdout = sys.stdout, sys.stderr
    for line in sys.stdin:
        try:
            answer = run(json.loads(line))
        except RecursionError:
            answer = {"error": "the function calls itself too deeply."}
        except Exception as error:
            answer = {"error": _where(error)}
        print(json.dumps(answer), file=answers, flush=True)


if __name__ == "__main__":
    main()
