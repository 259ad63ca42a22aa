"""Mixed calls of all domains with varied shapes for as long as one likes, watching memory, threads and file descriptors.

    PYTHONPATH=tests python -m soak --seconds 3600

Every call draws its shapes, precision and options anew; gradients are taken; files are written and read; wrong calls are made
and refused; objects are built and thrown away. Prints a line per look and the verdict; exit code 1 where something grew.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import json
import os
import random
import statistics
import sys
import tempfile
import threading
import time
import warnings
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor, nn

import algonet
from algonet import ranking, render, sorting, speech
from algonet.core.files import write_bytes
from algonet.core.pictures import open_picture, png_bytes
from algonet.explain import activation, sensitivity
from algonet.ifs import PRESETS, Poisson
from algonet.smooth_python import Merge, Particles, algorithms, smooth
from algonet.while_lang import LIBRARY, NonHaltingWarning, WhileProgram, read_source

#: What may be added between the first part of a run and its end. Allocators keep freed memory, and sizes vary: tens of MiB
#: come and go; a leak of 1 kB a call would be some 100 MiB in an hour.
MOST_MIB = 48.0
MOST_THREADS = 0
MOST_FILES = 2


def _draw(rng: random.Random, *shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.rand(*shape, generator=torch.Generator().manual_seed(rng.randrange(2**31)), dtype=dtype)


def _dtype(rng: random.Random) -> torch.dtype:
    return rng.choice((torch.float32, torch.float64))


def _backward(*results: object) -> None:
    total = sum(r.double().sum() for r in results if isinstance(r, Tensor) and r.requires_grad)
    if isinstance(total, Tensor):
        total.backward()


def sort(rng: random.Random) -> None:
    x = _draw(rng, rng.randint(1, 64), rng.randint(2, 48), dtype=_dtype(rng)).requires_grad_()
    relax = rng.choice((algonet.Logistic, algonet.Cauchy, algonet.Optimal))(rng.uniform(1, 50))
    method = rng.choice((sorting.OddEven(), sorting.Bitonic()))
    _backward(sorting.soft_sort(x, method=rng.choice((sorting.NeuralSort(), sorting.Permutahedron()))).values)
    _backward(sorting.soft_sort(x, relax=relax, method=method).values)
    _backward(sorting.soft_rank(x, relax=relax), sorting.soft_topk(x, rng.randint(1, x.shape[1])).values)
    _backward(sorting.soft_median(x, dim=rng.choice((0, 1))), sorting.SoftQuantile([0.1, 0.8])(x))


def rank(rng: random.Random) -> None:
    shape = rng.randint(1, 16), rng.randint(2, 60)
    scores, relevance = _draw(rng, *shape).requires_grad_(), (_draw(rng, *shape) * 4).floor()
    _backward(ranking.ndcg_loss(scores, relevance), ranking.spearman_loss(scores, relevance))
    _backward(ranking.average_precision_loss(scores, (relevance > 2).float()))


def while_programs(rng: random.Random) -> None:
    name = rng.choice(("add", "multiply", "power") if "power" in LIBRARY else ("add", "multiply"))
    program = WhileProgram.library(name, rng.choice((algonet.Sech(), algonet.Tent())), max_iterations=200)
    shape = (rng.randint(1, 40), rng.randint(1, 40))
    x1, x2 = ((3 * _draw(rng, *shape, dtype=_dtype(rng))).requires_grad_() for _ in range(2))
    _backward(program(x1=x1, x2=x2))
    # Parsing keeps nothing: a source that was never seen before
    lines = (f"x{rng.randint(0, 9)} := x{rng.randint(0, 9)} + {rng.randint(1, 999)}" for _ in range(20))
    read_source("\n".join(lines))


def _threshold(x, y):
    if x > y:
        x = x - y
    return x * y


def smooth_python(rng: random.Random) -> None:
    x = _draw(rng, rng.randint(1, 20), rng.randint(2, 8)).requires_grad_()
    paths = rng.choice((Merge(check=False), Particles(rng.randint(2, 16))))
    _backward(*algorithms.bubble_sort(x, batched=True, paths=paths))
    fresh = smooth(_threshold, relax=algonet.Logistic(rng.uniform(1, 20)))
    _backward(fresh(x.flatten(), x.flatten().flip(0)))


def fractals(rng: random.Random) -> None:
    system = algonet.IFS.preset(rng.choice(list(PRESETS)), points=rng.randint(64, 4000))
    _backward(system((rng.randint(8, 96), rng.randint(8, 96)), sigma=rng.uniform(0.5, 2)))
    points = _draw(rng, rng.randint(1, 3), rng.randint(10, 3000), 2, dtype=_dtype(rng)).requires_grad_()
    _backward(algonet.smooth_raster(points, size=(rng.randint(4, 64), rng.randint(4, 64)), aggregate=Poisson()))
    system.crisp(rng.randint(8, 128))


def meshes(rng: random.Random) -> None:
    mesh = rng.choice((render.icosphere(rng.randint(0, 3)), render.torus(), render.box(segments=rng.randint(1, 5))))
    coverage = algonet.FilteredCoverage(algonet.StudentT(8, scale=rng.uniform(0.5, 2)))
    renderer = algonet.SmoothRenderer((rng.randint(8, 80), rng.randint(8, 80)), coverage)
    camera = algonet.Camera.look_at((rng.uniform(-1, 1), rng.uniform(-1, 1), 3.0))
    seen = renderer(mesh.replace(vertices=mesh.vertices.clone().requires_grad_()), camera)
    _backward(seen.rgb, seen.silhouette)


def mesh_fits(rng: random.Random) -> None:
    side = rng.randint(8, 24)
    eyes = torch.tensor([[0.0, 0.0, 3.0], [3.0, 0.0, 0.0]])
    algonet.fit_mesh(torch.ones(2, side, side), algonet.Camera.look_at(eyes), render.icosphere(1), steps=2)


def networks(rng: random.Random) -> None:
    width = rng.randint(2, 16)
    network = nn.Sequential(
        nn.Linear(width, width),
        algonet.Shortcut(algonet.SoftSort()),
        algonet.SmoothDepth([nn.Sequential(nn.Linear(width, width), nn.Tanh()) for _ in range(rng.randint(1, 4))]),
    )
    x, y = _draw(rng, rng.randint(2, 32), width), _draw(rng, 1, width)
    _backward(network(x))
    data = [(x, y.expand_as(x))]
    activation(network, "1", data)
    sensitivity(network, "1", data, nn.functional.mse_loss)


def sounds(rng: random.Random) -> None:
    synthesizer = algonet.SmoothSynthesizer(sample_rate=8000, harmonics=rng.randint(4, 12))
    said = " ".join(rng.choices(synthesizer.names, k=rng.randint(1, 4)))
    score = synthesizer.score(said, pitch=rng.uniform(90, 300))
    _backward(synthesizer(score.phonemes, score.durations.clone().requires_grad_(), score.pitch, score.loudness).mel)


def files(rng: random.Random) -> None:
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        render.icosphere(rng.randint(0, 2)).save(place / f"a.{rng.choice(('obj', 'ply', 'stl', 'glb'))}")
        algonet.Mesh.load(next(place.glob("a.*")))
        system = algonet.IFS.preset("koch")
        system.save(place / "b.json")
        algonet.IFS.load(place / "b.json")
        write_bytes(place / "c.png", png_bytes(_draw(rng, rng.randint(1, 200), rng.randint(1, 200))))
        open_picture(place / "c.png")
        speech.write_wav(place / "d.wav", _draw(rng, rng.randint(1, 20000)), 8000)
        speech.read_wav(place / "d.wav")


def refusals(rng: random.Random) -> None:
    """What is refused leaves nothing behind: a traceback would keep every tensor of its frames."""
    x = _draw(rng, rng.randint(2, 9), rng.randint(2, 9))
    wrong: list[Callable[[], object]] = [
        lambda: sorting.soft_topk(x, 99),
        lambda: sorting.soft_sort(x.long()),
        lambda: read_source("WHILE x1 DO" * rng.randint(1, 50)),
        lambda: algonet.Mesh.load("nowhere.obj"),
        lambda: algonet.IFS(x),
        lambda: algonet.SmoothRenderer(-1),
        lambda: algonet.smooth_raster(x, size=(0, 3)),
    ]
    for call in wrong:
        try:
            call()
        except (ValueError, TypeError):
            continue
        raise AssertionError("a wrong call was not refused")


def threads(rng: random.Random) -> None:
    """Several threads that end again, each with a module of its own and one of all."""
    x = _draw(rng, rng.randint(1, 200), rng.randint(2, 30))
    layer = algonet.SoftSort()
    running = [threading.Thread(target=lambda: (layer(x), algonet.SoftRank()(x))) for _ in range(rng.randint(2, 6))]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()


DOMAINS = (
    sort, rank, while_programs, smooth_python, fractals, meshes, mesh_fits, networks, sounds, files, refusals, threads,
)  # fmt: skip


class Look(NamedTuple):
    seconds: float
    calls: int
    mib: float
    threads: int
    files: int
    objects: int


def look(begun: float, calls: int) -> Look:
    gc.collect()
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return Look(
        round(time.monotonic() - begun, 1),
        calls,
        round(pages * os.sysconf("SC_PAGE_SIZE") / 2**20, 1),
        len(os.listdir("/proc/self/task")),
        len(os.listdir("/proc/self/fd")),
        len(gc.get_objects()),
    )


def soak(seconds: float, looks: int = 60, seed: int = 0, told: Callable[[Look], None] = lambda _: None) -> list[Look]:
    """Call everything once or more for `seconds`; what was seen at even times."""
    rng, begun, found, calls = random.Random(seed), time.monotonic(), [], Counter()
    while (passed := time.monotonic() - begun) < seconds or len(found) < 4:
        # In turns, not at random: every part of the run holds the same mix
        for call in rng.sample(DOMAINS, len(DOMAINS)):
            call(rng)
            calls[call.__name__] += 1
        if passed >= seconds * len(found) / looks:
            found.append(look(begun, calls.total()))
            told(found[-1])
    return found


def verdict(found: list[Look]) -> list[str]:
    """What grew between the second quarter (caches are filled by then) and the last."""
    quarter = max(1, len(found) // 4)
    early, late = found[quarter : 2 * quarter], found[-quarter:]
    calls = late[-1].calls - early[0].calls
    faults = []
    for name, most in (
        ("mib", MOST_MIB),
        ("threads", MOST_THREADS),
        ("files", MOST_FILES),
        ("objects", 0.05 * calls + 500),
    ):
        before, after = (statistics.median(getattr(one, name) for one in part) for part in (early, late))
        if after - before > most:
            faults.append(f"{name}: {before:g} -> {after:g} over {calls} calls")
    return faults


def main() -> int:
    reader = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    reader.add_argument("--seconds", type=float, default=60.0)
    reader.add_argument("--seed", type=int, default=0)
    reader.add_argument("--out", type=Path, help="Where to keep what was seen, as JSON.")
    options = reader.parse_args()
    warnings.simplefilter("ignore", NonHaltingWarning)
    seen = soak(options.seconds, seed=options.seed, told=lambda one: print(json.dumps(one._asdict()), flush=True))
    if options.out:
        options.out.write_text(json.dumps([one._asdict() for one in seen], indent=1) + "\n", encoding="utf-8")
    faults = verdict(seen)
    print("\n".join(faults) or f"flat over {seen[-1].calls} calls in {seen[-1].seconds:.0f} s")
    return bool(faults)


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        sys.exit(main())
