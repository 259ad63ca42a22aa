"""What every experiment shares: its options, its data, checkpoints, and a JSON of rows that the page is made from.

An experiment module has `main()`. It takes the options of `arguments`, trains on data that the user points at (nothing is
downloaded), and records rows as benchmarks do (`benchmarks.harness.Row`): ours, and beside them the figures that others
published, each with its source in `note`. `python -m experiments --page` makes `docs/experiments.md` from
`experiments/results/*.json`.
"""

from __future__ import annotations

import argparse
import gzip
import io
import json
import math
import statistics
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

import numpy as np
import torch
from benchmarks.harness import Row, machine
from torch import Tensor

from algonet import __version__
from algonet.core.files import write_bytes, write_text
from algonet.core.pictures import open_picture

__all__ = [
    "MNIST",
    "Checkpoint",
    "Repeated",
    "Row",
    "arguments",
    "cosine",
    "join",
    "mnist",
    "record",
    "save",
    "spread_of",
]


#: What `--data` must hold where `mnist` reads it.
MNIST = "a folder with MNIST's idx files, or its images in train/0 to train/9 and test/0 to test/9"


def arguments(
    description: str | None,
    *,
    data: str = "",
    resumes: bool = False,
    devices: bool = False,
    choices: Mapping[str, Iterable[str]] = MappingProxyType({}),
    **defaults: object,
) -> argparse.Namespace:
    """The options of an experiment: those that all have, and what the others say.

    `data` says what `--data` must hold, "" that none is needed; an experiment that `resumes` takes `--out`, one that runs
    on any of several `devices` takes `--device`. Each of `defaults` becomes an option of its own, typed like its default, and
    takes one of its `choices` where it has some.
    """
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="write the rows to this file; - prints them as one line")
    parser.add_argument("--quick", action="store_true", help="minutes instead of hours, on data made on the spot")
    if resumes:
        parser.add_argument("--out", type=Path, help="keep checkpoints here and go on from them")
    if devices:
        parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    if data:
        parser.add_argument("--data", type=Path, help=data)
    for name, default in defaults.items():
        if isinstance(default, (list, tuple)):
            among = list(choices[name]) if name in choices else None
            parser.add_argument(f"--{name}", type=type(default[0]), nargs="+", default=list(default), choices=among)
        else:
            parser.add_argument(f"--{name}", type=type(default), default=default)
    options = parser.parse_args()
    if data and options.data is None and not options.quick:
        parser.error(f"--data is missing: {data} (--quick runs on data made on the spot)")
    for name, default in defaults.items():
        # Counts: whatever is an integer and begins at 1 or more, but for the seed
        if isinstance(default, int) and default > 0 and name != "seed" and getattr(options, name) < 1:
            parser.error(f"--{name}: must be at least 1, got {getattr(options, name)}")
    return options


def mnist(folder: Path | None, train: bool) -> tuple[Tensor, Tensor]:
    """Pictures (count, 28, 28) in [0, 1] and labels: MNIST's idx files, or folders of images (train/0/*.png to test/9/*.png).

    Without a folder, strokes made on the spot.
    """
    if folder is None:
        return _strokes(2000 if train else 500, seed=int(train))
    for name in ("train", "training") if train else ("test", "testing"):
        if (folder / name).is_dir():
            pictures, labels = _images(folder / name)
            break
    else:
        part = "train" if train else "t10k"
        pictures, labels = (_idx(folder, f"{part}-{kind}") for kind in ("images-idx3-ubyte", "labels-idx1-ubyte"))
    return torch.tensor(pictures / 255, dtype=torch.float32), torch.tensor(labels, dtype=torch.long)


def _idx(folder: Path, name: str) -> np.ndarray:
    for path in (folder / name, folder / f"{name}.gz"):
        if path.exists():
            data = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
            shape = np.frombuffer(data, ">i4", data[3], 4)
            return np.frombuffer(data, np.uint8, offset=4 + 4 * data[3]).reshape(shape)
    raise SystemExit(
        f"experiments: {folder} has no {name}[.gz]; get the four idx files of MNIST and pass their folder, "
        "or one with images in train/0 to train/9 and test/0 to test/9."
    )


def _images(folder: Path) -> tuple[np.ndarray, np.ndarray]:
    """Pictures (count, 28, 28) of bytes, and the digit whose folder each lies in."""
    paths = [(path, digit) for digit in range(10) for path in sorted((folder / str(digit)).glob("*.*"))]
    if not paths:
        raise SystemExit(f"experiments: {folder} has no images in folders 0 to 9.")
    pictures = [np.asarray(open_picture(path).convert("L").resize((28, 28))) for path, _ in paths]
    return np.stack(pictures), np.array([digit for _, digit in paths])


def _strokes(count: int, seed: int) -> tuple[Tensor, Tensor]:
    """Ten classes of bars that differ in their angle, shifted at random: enough to see that training works."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(10, (count,), generator=generator)
    y, x = torch.meshgrid(torch.linspace(-1, 1, 28), torch.linspace(-1, 1, 28), indexing="ij")
    angle = labels * (torch.pi / 10)
    shift = torch.randn(count, 2, 1, 1, generator=generator) / 10
    across = (x - shift[:, 0]) * angle.sin()[:, None, None] - (y - shift[:, 1]) * angle.cos()[:, None, None]
    return torch.exp(-((across / 0.15) ** 2)) * (x**2 + y**2 < 0.8), labels


class Checkpoint:
    """Tensors of a long run, written every `seconds` as one whole file, so that the run can go on from there."""

    def __init__(self, folder: Path | None, name: str, seconds: float = 30.0):
        self.path = None if folder is None else folder / f"{name}.pt"
        self.seconds, self.last = seconds, time.monotonic()

    def load(self) -> dict | None:
        if self.path is None or not self.path.exists():
            return None
        # Wherever it was written: what is loaded into a network or an optimizer goes to that one's device
        return torch.load(self.path, weights_only=True, map_location="cpu")

    def save(self, state: dict, *, now: bool = False) -> None:
        if self.path is None or not (now or time.monotonic() - self.last > self.seconds):
            return
        buffer = io.BytesIO()
        torch.save(state, buffer)
        write_bytes(self.path, buffer.getvalue())
        self.last = time.monotonic()


class Repeated:
    """A training step without arguments, called many times: on a GPU one CUDA graph, so that the host does not hold it up.

    The step must read what changes (its batch, its rate) from tensors on the device and wait for none of them. The first
    three calls run it plainly, which warms up allocators and compiles kernels.
    """

    def __init__(self, step: Callable[[], None], device: str):
        self.step, self.plain = step, 3 if torch.device(device).type == "cuda" else None
        self.graph: torch.cuda.CUDAGraph | None = None

    def __call__(self) -> None:
        if self.graph is not None:
            self.graph.replay()
        elif self.plain is None:
            self.step()
        elif self.plain > 0:
            self.plain -= 1
            # As graphs are captured on a stream of their own, what is made lazily must be made on another one than the default
            side = torch.cuda.Stream()
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                self.step()
            torch.cuda.current_stream().wait_stream(side)
        else:
            torch.cuda.synchronize()
            self.graph = graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                self.step()
            graph.replay()


def cosine(share: float) -> float:
    """From 1 at the start of a run to 0 at its end, along a cosine."""
    return (1 + math.cos(math.pi * share)) / 2


def spread_of(values: Iterable[float]) -> tuple[float, float]:
    """(mean, standard deviation over seeds; 0 of a single one)."""
    found = list(values)
    return statistics.fmean(found), statistics.stdev(found) if len(found) > 1 else 0.0


def record(path: Path | None, rows: list[Row], options: argparse.Namespace) -> None:
    """Print the rows, and write them with the machine, the version and the options they were measured with."""
    width = max((len(f"{r.name}, {r.by}, {r.column}") for r in rows), default=0)
    for row in rows:
        print(f"{f'{row.name}, {row.by}, {row.column}':{width}}  {row.value:.4g} {row.unit}", flush=True)
    if path is not None and str(path) == "-":
        print(json.dumps(_content(rows, options)))
    save(path, rows, options)


def save(path: Path | None, rows: list[Row], options: argparse.Namespace) -> None:
    """Write the rows so far, if it is to a file: a long run that is stopped leaves those it had."""
    if path is not None and str(path) != "-":
        write_text(path, json.dumps(_content(rows, options), indent=1) + "\n")


def join(records: Sequence[dict]) -> dict:
    """One record of parts that ran side by side on the same kind of machine.

    Of figures with the same name, column and `by` the last one counts; options are those that all parts agree on.
    """
    places = {(r["machine"]["cpu"], r["machine"]["gpu"]) for r in records}
    if len(places) > 1:
        raise SystemExit(f"experiments: parts of one record come from one kind of machine, got {sorted(places)}.")
    rows = {(row["name"], row["column"], row["by"]): row for r in records for row in r["rows"]}
    first, *others = (r["options"] for r in records)
    options = {k: v for k, v in first.items() if all(o.get(k) == v for o in others)}
    return {"machine": records[-1]["machine"], "options": options, "rows": list(rows.values())}


def _content(rows: list[Row], options: argparse.Namespace) -> dict:
    said = {k: v for k, v in vars(options).items() if k not in ("json", "out", "data", "device") and v is not None}
    kept = [
        {
            "name": r.name,
            "value": float(f"{r.value:.5g}"),
            "unit": r.unit,
            "column": r.column,
            "by": r.by,
            "note": r.note,
        }
        for r in rows
    ]
    return {"machine": machine() | {"algonet": __version__}, "options": said, "rows": kept}
