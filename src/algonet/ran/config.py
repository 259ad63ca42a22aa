"""The configuration of a run: a TOML file as frozen dataclasses, with errors that name the key."""

from __future__ import annotations

import dataclasses
import math
import tomllib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, get_type_hints

from algonet.core.files import read_file
from algonet.render.coverage import NAMED as COVERAGES

from .data.shapes import KINDS
from .data.utterances import TASKS
from .losses import LossWeights

#: Kind -> module of `problems` and class.
PROBLEMS = {
    "mesh": ("mesh", "MeshProblem"),
    "ifs": ("fractal", "FractalProblem"),
    "speech": ("speech", "SpeechProblem"),
}

#: No configuration is larger.
MOST_BYTES = 2**20
TRANSLATORS = ("local", "unet")
METHODS = ("ran", "direct", "supervised", "weak")


@dataclass(frozen=True)
class DataConfig:
    """`size`: height of a picture (and width of one view), or bands of a spectrogram; `views`: sides shown, next to each
    other; `train`, `validation`, `test`: how many items each; `seed`: of the items (the run's own seed is that of the
    weights and of the order); `labels`: the share of the training items whose truth method "weak" may see; `task`: what
    is said ("vowels", "syllables", "words"). `folder`: train on the files there instead (see `data.folder.Folder`);
    `bad_files`: "skip" or "refuse" those that cannot be read."""

    size: int = 64
    views: int = 2
    train: int = 2000
    validation: int = 64
    test: int = 64
    seed: int = 0
    noise: float = 0.03
    labels: float = 0.05
    task: str = "vowels"
    folder: str = ""
    bad_files: str = "skip"
    kinds: tuple[str, ...] = tuple(KINDS)


@dataclass(frozen=True)
class ModelConfig:
    """`level`, `radius`: of the template icosphere; `shading`: contrast of its renderings, 0 for silhouettes; `colours`:
    reconstruct the colours of its vertices too; `coverage`: how its faces cover pixels, "filtered", "gaussian", "edges" or
    "euclidean" (all but the first are slow); `functions`: of the IFS; `width`: of codes; `base`: first channels."""

    level: int = 3
    radius: float = 0.6
    functions: int = 3
    width: int = 256
    base: int = 32
    shading: float = 0.55
    colours: bool = False
    coverage: str = "filtered"
    translator: str = "local"
    translator_base: int = 24


@dataclass(frozen=True)
class LossConfig:
    """See `LossWeights`; `l1 = 0` in the file leaves the L1 terms out, `printed_norm = true` takes the sum over elements.
    `laplacian`, `flatten`, `colour`: of the parts of L_reg for meshes, `undecided`, `unbalanced` of that for speech;
    `label_weight`: of the labelled items of "weak"."""

    alpha: tuple[float, ...] = (1.0, 1.0, 1.0, 1.0, 1.0)
    adversarial: float = 1.0
    l1: float = 10.0
    printed_norm: bool = False
    regular: float = 1.0
    laplacian: float = 300.0
    flatten: float = 0.3
    colour: float = 1.0
    undecided: float = 0.1
    unbalanced: float = 0.5
    label_weight: float = 10.0
    separately: bool = True

    def weights(self) -> LossWeights:
        alpha: Any = tuple(float(w) for w in self.alpha)
        return LossWeights(alpha, self.adversarial, None if self.printed_norm else self.l1, self.regular)


@dataclass(frozen=True)
class TrainConfig:
    """`batch`: pictures per step over all processes; `softness`: noise of the inverse in pixels, annealed from first to
    last; `matmul_precision`: "highest", "high" or "medium", how exactly single-precision matrix products are taken on a
    GPU; `translator_rate`, `reconstructor_rate`: factors on the learning rate of those parts; `wait`: steps for which a
    RAN's reconstructor stays at its template, so that the translators find each other first; `final_rate`: the learning
    rate's share at the end of its cosine; `clip`: largest gradient norm per component (0: none); `save_errors`: "stop" or
    "continue" when a checkpoint cannot be written (a full disk); `deterministic`: sums in a fixed order on a GPU too,
    where a resumed run is then the same bit for bit, but slower."""

    steps: int = 2000
    batch: int = 32
    accumulate: int = 1
    learning_rate: float = 1e-3
    betas: tuple[float, float] = (0.5, 0.99)
    translator_rate: float = 5.0
    reconstructor_rate: float = 0.5
    wait: int = 200
    warmup: int = 50
    final_rate: float = 0.1
    clip: float = 1.0
    softness: tuple[float, float] = (2.0, 0.7)
    checkpoint_every: int = 200
    keep: int = 3
    save_errors: str = "stop"
    log_every: int = 10
    pictures_every: int = 200
    workers: int = 0
    accelerator: str = "auto"
    devices: int = 1
    nodes: int = 1
    precision: str = "32-true"
    matmul_precision: str = "high"
    deterministic: bool = False
    tensorboard: bool = True


@dataclass(frozen=True)
class RunConfig:
    """One run: what is reconstructed (`kind`), how it is trained (`method`), and the tables below."""

    kind: str = "mesh"
    method: str = "ran"
    seed: int = 0
    data: DataConfig = field(default_factory=DataConfig)
    model: ModelConfig = field(default_factory=ModelConfig)
    loss: LossConfig = field(default_factory=LossConfig)
    train: TrainConfig = field(default_factory=TrainConfig)

    def __post_init__(self):
        _among("kind", self.kind, tuple(PROBLEMS))
        _among("data.task", self.data.task, tuple(TASKS))
        _among("method", self.method, METHODS)
        _among("data.bad_files", self.data.bad_files, ("skip", "refuse"))
        if self.data.folder and self.method in ("supervised", "weak"):
            raise ValueError(f"config: `method` {self.method!r} needs the truth, which `data.folder` does not hold.")
        _among("train.save_errors", self.train.save_errors, ("stop", "continue"))
        _among("train.matmul_precision", self.train.matmul_precision, ("highest", "high", "medium"))
        _among("model.coverage", self.model.coverage, tuple(COVERAGES))
        _among("model.translator", self.model.translator, TRANSLATORS)
        for table, keys in _POSITIVE.items():
            for key in keys:
                value = getattr(getattr(self, table), key)
                if value <= 0:
                    raise ValueError(f"config: `{table}.{key}` must be positive, got {value!r}.")
        for (table, key), (low, high) in _BETWEEN.items():
            value = getattr(getattr(self, table), key)
            if not low <= value <= high:
                raise ValueError(f"config: `{table}.{key}` must be between {low} and {high}, got {value!r}.")
        if self.train.batch % (self.train.accumulate * self.train.devices * self.train.nodes):
            raise ValueError(
                f"config: `train.batch` = {self.train.batch} must be a multiple of accumulate x devices x nodes = "
                f"{self.train.accumulate * self.train.devices * self.train.nodes}."
            )
        if min(self.train.softness) <= 0:
            raise ValueError(f"config: `train.softness` must be two positive widths, got {self.train.softness!r}.")
        self.loss.weights()

    def to_dict(self) -> dict[str, Any]:
        """Plain values, which `from_dict` takes back."""
        return dataclasses.asdict(self)


_POSITIVE = {
    "data": ("size", "views", "train", "validation", "test"),
    "model": ("radius", "functions", "width", "base", "translator_base"),
    "train": ("steps", "batch", "accumulate", "learning_rate", "checkpoint_every", "keep", "log_every", "pictures_every",
              "devices", "nodes"),
}  # fmt: skip

#: What a model of several gigabytes would have; more is a slip, and would fail for want of memory without saying why.
_BETWEEN = {
    ("data", "size"): (8, 1024),
    ("data", "views"): (1, 64),
    ("data", "labels"): (1e-9, 1.0),
    ("model", "level"): (0, 7),
    ("model", "functions"): (1, 255),
    ("model", "width"): (1, 8192),
    ("model", "base"): (1, 512),
    ("model", "translator_base"): (1, 512),
    ("data", "train"): (1, 100_000_000),
    ("data", "validation"): (1, 10_000_000),
    ("data", "test"): (1, 10_000_000),
    ("train", "batch"): (1, 1_000_000),
    ("train", "steps"): (1, 10**12),
    ("train", "workers"): (0, 1024),
    ("train", "devices"): (1, 1024),
    ("train", "nodes"): (1, 65536),
    ("train", "keep"): (1, 1_000_000),
}


def load_config(path: str | Path) -> RunConfig:
    """Read a TOML file; every error is one line that names the file and the key."""
    if not isinstance(path, str | Path):
        raise TypeError(
            f"load_config: wanted the path of a TOML file, got {type(path).__name__}; tables: from_dict(table)."
        )
    path = Path(path)
    try:
        table = tomllib.loads(read_file(path, MOST_BYTES).decode())
    except tomllib.TOMLDecodeError as error:
        raise ValueError(f"{path}: not valid TOML: {error}") from None
    except UnicodeDecodeError:
        raise ValueError(f"{path}: not a text file; a TOML configuration is needed.") from None
    except RecursionError:
        raise ValueError(f"{path}: not valid TOML: brackets nest too deep.") from None
    try:
        return from_dict(table)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None


def from_dict(table: dict[str, Any]) -> RunConfig:
    """A configuration from nested tables; missing keys have their defaults."""
    if not isinstance(table, dict):
        raise ValueError(f"config: wanted a table of settings, got {type(table).__name__}.")
    return _read(RunConfig, table, "")


def _read(kind: type, table: dict[str, Any], prefix: str) -> Any:
    hints = get_type_hints(kind)
    values = {}
    for key, value in table.items():
        if key not in hints:
            raise ValueError(f"config: unknown key `{prefix}{key}`; there are {', '.join(sorted(hints))}.")
        values[key] = _converted(hints[key], value, f"{prefix}{key}")
    return kind(**values)


def _converted(hint: Any, value: Any, name: str) -> Any:
    if dataclasses.is_dataclass(hint):
        if not isinstance(value, dict):
            raise ValueError(f"config: `{name}` must be a table, got {value!r}.")
        return _read(hint, value, f"{name}.")  # pyright: ignore[reportArgumentType]
    if getattr(hint, "__origin__", None) is tuple:
        kinds = hint.__args__
        item = kinds[0]
        if not isinstance(value, (list, tuple)) or (kinds[-1] is not Ellipsis and len(value) != len(kinds)):
            count = "a list" if kinds[-1] is Ellipsis else f"a list of {len(kinds)}"
            raise ValueError(f"config: `{name}` must be {count}, got {value!r}.")
        return tuple(_converted(item, entry, f"{name}[{i}]") for i, entry in enumerate(value))
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        value = float(value) if abs(value) < 2**1023 else math.inf
    if hint is float and isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"config: `{name}` must be finite, got {value!r}.")
    if not isinstance(value, hint) or (isinstance(value, bool) and hint is not bool):
        raise ValueError(f"config: `{name}` must be {_NAMES[hint]}, got {value!r}.")
    return value


_NAMES = {int: "an integer", float: "a number", str: "a text", bool: "true or false"}


def _among(key: str, value: str, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise ValueError(f"config: `{key}` must be one of {', '.join(choices)}, got {value!r}.")
