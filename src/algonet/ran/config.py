"""The configuration of a run: a TOML file as frozen dataclasses, with errors that name the key.

A field's type says what it may be: `Annotated[int, (low, high)]` is bounded, `Annotated[str, choices]` is one of some. One
reader checks every table, whether it comes from a file or from Python."""

from __future__ import annotations

import dataclasses
import math
import tomllib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, ClassVar, get_args, get_origin, get_type_hints

from algonet.core.files import read_file
from algonet.render.coverage import NAMED as COVERAGES

from .data import STYLES
from .data.shapes import KINDS
from .data.utterances import TASKS

#: Kind -> module of `problems` and class.
PROBLEMS = {
    "mesh": ("mesh", "MeshProblem"),
    "ifs": ("fractal", "FractalProblem"),
    "speech": ("speech", "SpeechProblem"),
}
METHODS = ("ran", "direct", "supervised", "weak")
#: No configuration is larger; reading one takes the square of the dots in a key.
MOST_BYTES = 2**14

# Bounds are what a model of several gigabytes would have; more is a slip, and would fail for want of memory without saying why
Count = Annotated[int, (1, 10**8)]
Size = Annotated[int, (1, 8192)]
Machines = Annotated[int, (1, 65536)]
Steps = Annotated[int, (1, 10**12)]
Wait = Annotated[int, (0, 10**12)]
Share = Annotated[float, (0.0, 1.0)]
Weight = Annotated[float, (0.0, 1e9)]
Positive = Annotated[float, (1e-9, 1e9)]


class Table:
    """Checks its fields when it is made; a whole number is taken where any number may stand."""

    table: ClassVar[str]

    def __init_subclass__(cls, table: str = ""):
        cls.table = table

    def __post_init__(self):
        for name, hint in get_type_hints(type(self), include_extras=True).items():
            if get_origin(hint) is not ClassVar:
                value = _checked(hint, getattr(self, name), f"{self.table}{name}")
                object.__setattr__(self, name, value)


@dataclass(frozen=True)
class DataConfig(Table, table="data."):
    """`size`: height of a picture (and width of one view), or bands of a spectrogram; `views`: sides shown, next to each
    other; `train`, `validation`, `test`: how many items each; `seed`: of the items (the run's own seed is that of the
    weights and of the order); `style`: how inputs look (see `data.Style`); `labels`: the share of the training items, above 0
    and at most 1, whose truth method "weak" may see; `task`: what is said. `folder`: train on the files there instead (see
    `data.folder.Folder`); `bad_files`: "skip" or "refuse" those that cannot be read."""

    size: Annotated[int, (8, 1024)] = 64
    views: Annotated[int, (1, 64)] = 2
    train: Count = 2000
    validation: Count = 64
    test: Count = 64
    seed: int = 0
    noise: Weight = 0.03
    labels: Annotated[float, (1e-9, 1.0)] = 0.05
    task: Annotated[str, tuple(TASKS)] = "vowels"
    folder: str = ""
    bad_files: Annotated[str, ("skip", "refuse")] = "skip"
    style: Annotated[str, tuple(STYLES)] = "palettes"
    kinds: tuple[str, ...] = tuple(KINDS)


@dataclass(frozen=True)
class ModelConfig(Table, table="model."):
    """`level`, `radius`: of the template icosphere; `shading`: contrast of its renderings, 0 for silhouettes; `colours`:
    reconstruct the colours of its vertices too; `coverage`: how its faces cover pixels (all but "filtered" are slow);
    `translator`: "local", "unet" (translators see the whole picture, D judges patches) or "repaint" (as "unet", with a b2a
    that borrows its colours: `networks.Repaint`); `functions`: of the IFS; `width`: of codes; `base`: first channels."""

    level: Annotated[int, (0, 7)] = 3
    radius: Positive = 0.6
    functions: Annotated[int, (1, 255)] = 3
    width: Size = 256
    base: Annotated[int, (1, 512)] = 32
    shading: Share = 0.55
    colours: bool = False
    coverage: Annotated[str, tuple(COVERAGES)] = "filtered"
    translator: Annotated[str, ("local", "unet", "repaint")] = "local"
    translator_base: Annotated[int, (1, 512)] = 24


@dataclass(frozen=True)
class LossWeights(Table, table="LossWeights."):
    """The weights of the objective sum_i alpha_i L_i + L_reg and, inside each L_i, of its parts.

    `alpha`: one weight in [0, 1] per loss; 0 leaves it out. `adversarial`: of the two logarithms. `l1`: of the *mean*
    absolute difference per element; None takes the norm as printed, the sum over all elements. `regular`: of L_reg.
    """

    alpha: tuple[Share, Share, Share, Share, Share] = (1.0, 1.0, 1.0, 1.0, 1.0)
    adversarial: Weight = 1.0
    l1: Weight | None = None
    regular: Weight = 1.0

    @property
    def active(self) -> tuple[int, ...]:
        """The numbers of the losses that count."""
        return tuple(i for i, weight in enumerate(self.alpha, 1) if weight)


@dataclass(frozen=True)
class LossConfig(LossWeights, table="loss."):
    """See `LossWeights`; in a file `l1 = 0` leaves the L1 terms out, `printed_norm = true` takes the sum over elements.
    `laplacian`, `flatten`, `colour`: of the parts of L_reg for meshes, `undecided`, `unbalanced` of that for speech;
    `label_weight`: of the labelled items of "weak"; `samples`, `way_back`: of the two losses of `model.Prior`, 0 for none."""

    l1: Weight | None = 10.0
    printed_norm: bool = False
    laplacian: Weight = 300.0
    flatten: Weight = 0.3
    colour: Weight = 1.0
    undecided: Weight = 0.1
    unbalanced: Weight = 0.5
    label_weight: Weight = 10.0
    samples: Weight = 0.0
    way_back: Weight = 0.0
    separately: bool = True

    def weights(self) -> LossWeights:
        return dataclasses.replace(self, l1=None) if self.printed_norm else self


@dataclass(frozen=True)
class TrainConfig(Table, table="train."):
    """`batch`: pictures per step over all processes; `softness`: noise of the inverse in pixels, annealed from first to
    last, or nothing: it keeps its own; `matmul_precision`: of single-precision matrix products on a GPU;
    `translator_rate`, `reconstructor_rate`: factors on the learning rate of those parts; `wait`: steps for which a
    RAN's reconstructor stays at its template, so that the translators find each other first; `final_rate`: the
    learning rate's share at the end of its cosine; `clip`: largest gradient norm per component (0: none);
    `save_errors`: "stop" or "continue" when a checkpoint cannot be written (a full disk); `deterministic`: sums in a
    fixed order on a GPU too, slower."""

    steps: Steps = 2000
    batch: Count = 32
    accumulate: Count = 1
    learning_rate: Positive = 1e-3
    betas: tuple[Share, Share] = (0.5, 0.99)
    translator_rate: Weight = 5.0
    reconstructor_rate: Weight = 0.5
    wait: Wait = 200
    warmup: Wait = 50
    final_rate: Share = 0.1
    clip: Weight = 1.0
    softness: tuple[Positive, ...] = (2.0, 0.7)
    checkpoint_every: Steps = 200
    keep: Count = 3
    save_errors: Annotated[str, ("stop", "continue")] = "stop"
    log_every: Steps = 10
    pictures_every: Steps = 200
    accelerator: str = "auto"
    devices: Machines = 1
    nodes: Machines = 1
    precision: str = "32-true"
    matmul_precision: Annotated[str, ("highest", "high", "medium")] = "high"
    deterministic: bool = False
    tensorboard: bool = True

    def __post_init__(self):
        super().__post_init__()
        shares = self.accumulate * self.devices * self.nodes
        if self.batch % shares:
            raise ValueError(
                f"config: `train.batch` = {self.batch} must be a multiple of accumulate x devices x nodes = {shares}."
            )
        if len(self.softness) not in (0, 2):
            raise ValueError(f"config: `train.softness` must be a list of 2, first and last, got {self.softness!r}.")


@dataclass(frozen=True)
class RunConfig(Table):
    """One run: what is reconstructed (`kind`), how it is trained (`method`), and the tables below."""

    kind: Annotated[str, tuple(PROBLEMS)] = "mesh"
    method: Annotated[str, METHODS] = "ran"
    seed: int = 0
    data: DataConfig = field(default_factory=DataConfig)
    model: ModelConfig = field(default_factory=ModelConfig)
    loss: LossConfig = field(default_factory=LossConfig)
    train: TrainConfig = field(default_factory=TrainConfig)

    def __post_init__(self):
        super().__post_init__()
        if self.data.folder and self.method in ("supervised", "weak"):
            raise ValueError(f"config: `method` {self.method!r} needs the truth, which `data.folder` does not hold.")

    def to_dict(self) -> dict[str, Any]:
        """Plain values, which `from_dict` takes back."""
        return dataclasses.asdict(self)


def load_config(path: str | Path) -> RunConfig:
    """Read a TOML file; every error is one line that names the file and the key."""
    if not isinstance(path, str | Path):
        raise TypeError(
            f"load_config: wanted the path of a TOML file, got {type(path).__name__}; tables: from_dict(table)."
        )
    path = Path(path)
    try:
        table = tomllib.loads(read_file(path, MOST_BYTES).decode())
    except UnicodeDecodeError:
        raise ValueError(f"{path}: not a text file; a TOML configuration is needed.") from None
    except ValueError as error:  # an integer of too many digits is no TOMLDecodeError
        raise ValueError(f"{path}: not valid TOML: {error}") from None
    except RecursionError:
        raise ValueError(f"{path}: not valid TOML: brackets nest too deep.") from None
    try:
        return from_dict(table)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None


def from_dict(table: dict[str, Any], kind: Any = RunConfig) -> Any:
    """A configuration, or a part of this `kind`, from nested tables; missing keys have their defaults."""
    if not isinstance(table, dict):
        raise ValueError(f"config: wanted a table of settings, got {type(table).__name__}.")
    names = [f.name for f in dataclasses.fields(kind)]
    for key in table:
        if key not in names:
            raise ValueError(f"config: unknown key `{kind.table}{key}`; there are {', '.join(sorted(names))}.")
    return kind(**table)


def _checked(hint: Any, value: Any, name: str) -> Any:
    """`value` as `hint` wants it, or an error that says what is wanted of `name`."""
    if type(None) in get_args(hint):
        return None if value is None else _checked(get_args(hint)[0], value, name)
    if get_origin(hint) is Annotated:
        kind, allowed = get_args(hint)
        value = _checked(kind, value, name)
        if kind is str and value not in allowed:
            raise ValueError(f"config: `{name}` must be one of {', '.join(allowed)}, got {value!r}.")
        if kind is not str and not allowed[0] <= value <= allowed[1]:
            raise ValueError(f"config: `{name}` must be between {allowed[0]} and {allowed[1]}, got {value!r}.")
        return value
    if get_origin(hint) is tuple:
        kinds = get_args(hint)
        if not isinstance(value, (list, tuple)) or (kinds[-1] is not Ellipsis and len(value) != len(kinds)):
            count = "" if kinds[-1] is Ellipsis else f" of {len(kinds)}"
            raise ValueError(f"config: `{name}` must be a list{count}, got {value!r}.")
        return tuple(_checked(kinds[0], entry, f"{name}[{i}]") for i, entry in enumerate(value))
    if isinstance(value, dict) and dataclasses.is_dataclass(hint):
        return from_dict(value, hint)
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        value = float(value) if abs(value) < 2**1023 else math.inf
    if hint is float and isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"config: `{name}` must be finite, got {value!r}.")
    if not isinstance(value, hint) or (isinstance(value, bool) and hint is not bool):
        wanted = {int: "an integer", float: "a number", str: "a text", bool: "true or false"}.get(hint, "a table")
        raise ValueError(f"config: `{name}` must be {wanted}, got {value!r}.")
    return value
