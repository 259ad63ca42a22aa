"""Triton kernels compiled to machine code for cards that are not there: NVIDIA's and AMD's.

Triton compiles and links without a card. So operations are called on the CPU, in a process whose Triton backend takes CPU
tensors and in which a kernel that would be started is written down instead, with its types, constants and options. Results are
zeros; what is compiled afterwards is what such a card would get. For AMD, torch is made to say that it is a ROCm build before
the package is imported, for that is what the package asks.

    PYTHONPATH=tests python -m helpers.cards               # every kernel in each precision for every card: minutes
    PYTHONPATH=tests python -m helpers.cards gfx942 80     # for these
"""

from __future__ import annotations

import importlib
import itertools
import os
import re
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

from helpers.translated import TESTS, type_of

#: Compute capability, or the name of AMD's architecture -> lanes of a warp.
CARDS = {"80": 32, "90": 32, "100": 32, "gfx942": 64, "gfx1100": 32}
#: Files whose contract cases are called.
FILES = (
    "sorting.test_contract",
    "ifs.test_contract",
    "render.test_contract",
    "while_lang.test_smooth",
    "smooth_python.test_algorithms",
)


def is_amd(card: str) -> bool:
    return card.startswith("gfx")


def more_calls() -> Iterator[Callable[[], Any]]:
    """Calls that start the kernels which no contract case needs: those for many items, large pictures, lights."""
    from algonet.relax import Cauchy, Logistic, StudentT
    from algonet.render import BlinnPhong, Camera, FilteredCoverage, PointLight, SmoothRenderer, icosphere, rasterize
    from algonet.render.modules import DEFAULT_LIGHTS
    from algonet.sorting import Bitonic, OddEven, Pairwise, SmoothedCDF, soft_rank, soft_sort, soft_topk_mask

    def drawn(*shape: int) -> torch.Tensor:
        return torch.randn(shape, requires_grad=True)

    def both(function: Callable[..., Any], *leaves: torch.Tensor) -> Callable[[], Any]:
        def call() -> None:
            out = function(*leaves)
            outputs = [o for o in ((out,) if isinstance(out, torch.Tensor) else out) if o.requires_grad]
            torch.autograd.grad(outputs, leaves, [torch.ones_like(o) for o in outputs], allow_unused=True)

        return call

    def sort(method: Any, **options: Any) -> Callable[..., list[torch.Tensor]]:
        def call(x: torch.Tensor, payload: torch.Tensor | None = None) -> list[torch.Tensor]:
            found = soft_sort(x, payload=payload, method=method, backend="triton", **options)
            return [found.values] if payload is None else [found.values, found.payload]

        return call

    for n in (16, 300, 700):
        yield both(sort(OddEven(), relax=Logistic(4.0)), drawn(2, n))
        yield both(sort(OddEven(), relax=Cauchy(4.0)), drawn(2, n), drawn(2, n, 3))
    yield both(sort(Bitonic()), drawn(2, 9000), drawn(2, 9000, 2))
    yield both(sort(SmoothedCDF()), drawn(2, 3000), drawn(2, 3000, 2))
    yield both(lambda x: soft_rank(x, method=Pairwise(), backend="triton"), drawn(2, 50))
    for n in (40, 100_000):
        yield both(lambda x: soft_topk_mask(x, 5, backend="triton"), drawn(1, n))
    ball, camera = icosphere(2), Camera.look_at(torch.tensor([[0.3, 0.2, 3.0], [0.3, 2.0, 3.0]]))
    yield both(
        lambda vertices: ball.replace(vertices=vertices).vertex_normals(), ball.vertices.clone().requires_grad_()
    )
    yield lambda: rasterize(ball.vertices, ball.faces, camera, size=(90, 210), backend="triton")
    pointed, wide = (PointLight((1.0, 2.0, 3.0)),), FilteredCoverage(StudentT(scale=6.0))
    for mesh, lights, options in (
        (ball, DEFAULT_LIGHTS, {}),
        (ball, pointed, {"surface": BlinnPhong()}),
        (ball, pointed, {"shading": "vertex", "deterministic": True}),
        (ball, DEFAULT_LIGHTS, {"coverage": wide}),
        (icosphere(4), DEFAULT_LIGHTS, {"size": 256}),
    ):

        def rendered(vertices: torch.Tensor, mesh=mesh, lights=lights, options=options):
            renderer = SmoothRenderer(**{"size": 96, "backend": "triton", **options})
            return renderer(mesh.replace(vertices=vertices), camera, lights).rgb

        yield both(rendered, mesh.vertices.clone().requires_grad_())


def written_down() -> list[Any]:
    """Every launch that the calls want, once: as the `Launch`, with the tensors it would be given."""
    from algonet.core import backends, launch

    object.__setattr__(backends.TRITON, "device", "cpu")
    # Else what memory held would choose among kernels
    torch.empty, torch.empty_like = torch.zeros, torch.zeros_like
    found: dict[Any, Any] = {}

    def note(self: Any, tensors: tuple[torch.Tensor, ...]) -> None:
        types = tuple(tensor.dtype for tensor in tensors)
        rest = tuple((type(value), value) for value in self.rest)
        found.setdefault((self.kernel, types, rest, tuple(self.options.items())), (self, tensors))

    launch.Launch._first = note  # pyright: ignore[reportAttributeAccessIssue]
    from helpers.contract import gradients

    for file in FILES:
        for case in importlib.import_module(file).CASES:
            for dtype in (torch.float32, torch.float64):
                if case.kernels:
                    _tried(case.name, lambda case=case, dtype=dtype: gradients(case, case.draw(3, dtype), "triton"))
    for number, call in enumerate(more_calls()):
        _tried(f"call {number}", call)
    return list(found.values())


def _tried(name: str, call: Callable[[], Any]) -> None:
    """A call that Triton refuses starts nothing; results that are not results may stop one after its launches."""
    try:
        call()
    except Exception as error:
        print(f"{name}: {type(error).__name__}: {' '.join(str(error).split())[:200]}", file=sys.stderr)


def _is_double(tensors: tuple[torch.Tensor, ...]) -> bool:
    return any(tensor.dtype == torch.float64 for tensor in tensors)


def named(kernel: Any) -> tuple[str, str]:
    """(module, kernel): of generated kernels what they were made for, without the sigmoid and the digest."""
    module = kernel.fn.__module__.removeprefix("algonet.")
    return re.sub(r"_generated_(\w+?_triton)_.*", r"\1", module).removeprefix("algonet"), kernel.fn.__name__


def declared() -> dict[str, int]:
    """How many kernels of each name stand in the package's source."""
    import algonet

    files = [
        file
        for pattern in ("triton.py", "triton/*.py")
        for file in Path(algonet.__file__).parent.rglob(f"kernels/{pattern}")
    ]
    names = [
        name for file in files for name in re.findall(r"^@kernel\ndef (\w+)", file.read_text("utf-8"), re.MULTILINE)
    ]
    return {name: names.count(name) for name in names}


def compile_for(card: str, launched: Any, tensors: tuple[torch.Tensor, ...]) -> str | None:
    """`None`, or why the compiler, the assembler or the linker of the card refuses the kernel."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource
    from triton.compiler.compiler import make_backend

    kernel = launched.kernel
    given = dict(zip(kernel.arg_names, (*tensors, *launched.rest), strict=True))
    fixed = {p.name for p in kernel.params if p.is_constexpr} | {name for name, v in given.items() if v is None}
    target = GPUTarget("hip" if is_amd(card) else "cuda", card if is_amd(card) else int(card), CARDS[card])
    # As `JITFunction.run` does
    known = make_backend(target).parse_options(dict(launched.options)).__dict__
    if unknown := launched.options.keys() - known:
        return f"no option {', '.join(unknown)}"
    source = ASTSource(
        fn=kernel,
        signature={name: "constexpr" if name in fixed else type_of(value) for name, value in given.items()},
        constexprs={(kernel.arg_names.index(name),): given[name] for name in fixed},
    )
    try:
        made = triton.compile(source, target=target, options=launched.options)
    except Exception as error:
        return " ".join(str(error).split())[-300:]
    return None if made.asm.get("hsaco" if is_amd(card) else "cubin") else "no machine code"


def compiled(cards: tuple[str, ...], everything: bool = False) -> list[str]:
    """A line for each kernel and card, made in a process without the interpreter: all cards of one maker.

    Unless `everything`, each kernel is compiled once, in float32 where there is that, for one of the cards in turn.
    """
    environment = {
        **os.environ,
        "TRITON_INTERPRET": "0",
        "TRITON_CACHE_DIR": os.path.join(os.environ.get("ALGONET_CACHE", tempfile.gettempdir()), "cards"),
        "PYTHONPATH": os.pathsep.join([str(TESTS), *sys.path]),
    }
    command = [sys.executable, "-m", "helpers.cards", "in-process", str(int(everything)), *cards]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=3000)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout.splitlines()


def main(everything: bool, cards: list[str]) -> None:
    if is_amd(cards[0]):
        torch.version.hip = "7.0"  # pyright: ignore[reportAttributeAccessIssue]
    warnings.simplefilter("ignore")
    launches = written_down()
    print(" ".join(sorted({".".join(named(launched.kernel)) for launched, _ in launches})))
    # The first of each kernel, in each precision or in float32 where there is that
    chosen: dict[Any, Any] = {}
    for launched, tensors in sorted(launches, key=lambda launch: _is_double(launch[1])):
        chosen.setdefault((named(launched.kernel), everything and _is_double(tensors)), (launched, tensors))
    turn = itertools.cycle(cards)
    for launched, tensors in chosen.values():
        for card in cards if everything else [next(turn)]:
            start = time.perf_counter()
            reason = compile_for(card, launched, tensors)
            took = time.perf_counter() - start
            name, types = ".".join(named(launched.kernel)), "float64" if _is_double(tensors) else "float32"
            print(f"{card} {name} {types} | {reason or 'compiled'} | {took:.1f} s | {launched.rest}", flush=True)


if __name__ == "__main__":
    if sys.argv[1:2] == ["in-process"]:
        main(sys.argv[2] == "1", sys.argv[3:])
    else:
        for card in sys.argv[1:] or CARDS:
            _, *lines = compiled((card,), everything=True)
            refused = [line for line in lines if " | compiled | " not in line]
            print(f"{card}: {len(lines) - len(refused)} of {len(lines)} compiled", *refused, sep="\n  ", flush=True)
