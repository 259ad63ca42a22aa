"""What a person sees of a training run: what is idle or collapsed, and the grid of pictures."""

from __future__ import annotations

import torch
from torch import Tensor

from algonet.core.extras import require
from algonet.core.pictures import to_bytes

from .losses import LOSSES, Paths
from .model import RAN, Trainable


@torch.no_grad()
def measures(model: Trainable, a: Tensor) -> dict[str, float]:
    """What shows that a part is idle, collapsed or lost: the share of pairs that D judges rightly; how much the answers of the
    others differ between inputs, as the mean absolute deviation per pixel; how far b'' is from b' in units of a2b's; and the
    share of a's variance that a b2a that borrows colours leaves unexplained from b''."""
    if not isinstance(model, RAN):
        return {"reconstructor": _varied(model.invert(model.reconstruct(a), a))}
    paths = model.paths(a)
    found = {name: _varied(paths.get(p)) for name, p in (("reconstructor", "b2"), ("a2b", "b1"), ("b2a", "a1"))}
    apart = float((paths.get("b2") - paths.get("b1")).abs().mean())
    found["b''"] = apart / found["a2b"] if found["a2b"] >= SAME else 0.0  # of a collapsed a2b nothing can be learned
    if getattr(model.b2a, "borrows", False):  # it fits a, so that only the content can be wrong
        found["a''"] = float((paths.get("a2") - a).square().sum() / (a - a.mean((2, 3), keepdim=True)).square().sum())
    if model.weights.adversarial:
        right = []
        for index in model.weights.active:
            for sign, pair in ((1, LOSSES[index].real), (-1, LOSSES[index].fake)):
                right.append((sign * model.discriminator(*(paths.get(name) for name in pair)) > 0).float().mean())
        found["discriminator"] = float(torch.stack(right).mean())
    return found


def findings(checks: list[dict[str, float]], last: int = 3) -> list[str]:
    """A line for each part that was idle or collapsed in all of the `last` checks, with what usually helps."""
    recent = checks[-last:]
    agree = all(0 < check.get("b''", 0.0) < NEAR for check in recent)  # 0: of a collapsed a2b
    lines = []
    for name in recent[-1] if recent else ():
        values = [check[name] for check in recent]
        if name == "b''":
            if min(values) > 1:
                lines.append(
                    f"b'' is no nearer to b' than one picture for all inputs ({values[-1]:.1f} times): {_HELP[name]}"
                )
        elif name == "a''":
            if min(values) > UNEXPLAINED:
                lines.append(
                    f"b'' explains little of a ({values[-1]:.0%} of its variance is left in a''): {_HELP[name]}"
                )
        elif name != "discriminator":
            if max(values) < SAME:
                lines.append(
                    f"{name} answers every input alike (answers differ by {values[-1]:.3f} per pixel): {_HELP[name]}"
                )
        elif max(abs(v - 0.5) for v in values) < CHANCE and not agree:
            lines.append(f"discriminator is idle (right in {values[-1]:.0%} of the pairs): {_HELP['idle']}")
        elif min(values) > 1 - CHANCE:
            lines.append(f"discriminator has won (right in {values[-1]:.0%} of the pairs): {_HELP['won']}")
    return lines


#: Answers that differ less per pixel are the same; D this near to 1/2 knows nothing, or, with b''
#: and b' nearer than this in units of a2b's differences, has nothing left to tell apart.
SAME, CHANCE, NEAR = 0.02, 0.03, 0.6
#: Blobs before a ramp: 0.2 where their places are found, 0.83 to 0.95 where they are not.
UNEXPLAINED = 0.8
_HELP = {
    "b''": "R and a2b do not agree on the inputs; train longer, lower train.translator_rate, or take a smaller a2b "
    "(model.translator_base).",
    "a''": "R finds something else in the inputs, or they are mostly noise; train longer, or take a smaller a2b.",
    "reconstructor": "raise train.wait until b' shows outlines, or train.reconstructor_rate after it; see a2b first.",
    "a2b": "train longer; give it samples of B (loss.samples, loss.way_back) and a b2a that borrows colours "
    '(model.translator = "repaint").',
    "b2a": 'colours that say nothing of the content cannot be guessed; try model.translator = "repaint".',
    "idle": "the losses' L1 terms train alone, which is enough with a way back; else raise loss.adversarial or model.base.",
    "won": "the others cannot follow it; lower loss.adversarial, or give them more (model.translator_base).",
}


def _varied(pictures: Tensor) -> float:
    return float((pictures - pictures.mean(0)).abs().mean())


@torch.no_grad()
def picture_grid(model: Trainable, a: Tensor) -> Tensor:
    """One row per input (3, H, W) in [0, 1]: a, then b' b'' a' a'' of a RAN, or the inverse of the reconstruction alone. Names
    stand above the columns, and the input's number in the batch before each row."""
    require("PIL")
    from PIL import Image, ImageDraw

    paths = model.paths(a) if isinstance(model, RAN) else Paths(a, b2=model.invert(model.reconstruct(a), a))
    named = {"a": paths.a, "b'": paths.b1, "b''": paths.b2, "a'": paths.a1, "a''": paths.a2}
    shown = {name: t for name, t in named.items() if t is not None}
    (left, top), height, width = MARGIN, a.shape[-2] + 2, a.shape[-1] + 2
    grid = Image.new("RGB", (left + width * len(shown), top + height * len(a)), "white")
    pen = ImageDraw.Draw(grid)
    for column, (name, pictures) in enumerate(shown.items()):
        pen.text((left + column * width + 1, 0), name, fill="black")
        for row, picture in enumerate(coloured(pictures)):
            pen.text((1, top + row * height), str(row), fill="black")
            pixels = Image.fromarray(to_bytes(picture[..., : width - 2].movedim(0, -1)))
            grid.paste(pixels, (left + column * width, top + row * height))
    return (
        torch.tensor(bytearray(grid.tobytes()), dtype=torch.uint8).view(grid.height, grid.width, 3).movedim(-1, 0) / 255
    )


#: Pixels for the names: left of a grid and above it.
MARGIN = (14, 12)


def coloured(pictures: Tensor) -> Tensor:
    """Pictures (B, C, H, W) as (B, 3, H, W): grey ones repeated; of four channels, which are a silhouette and colours
    before black, the colours."""
    if pictures.shape[1] == 4:
        return pictures[:, 1:]
    if pictures.shape[1] != 3:
        pictures = pictures.mean(1, keepdim=True).expand(-1, 3, -1, -1)
    return pictures
