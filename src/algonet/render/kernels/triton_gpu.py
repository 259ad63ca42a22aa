"""The smooth rasteriser on CUDA devices: what `algonet.core.autograd` wants of it.

`triton_plan` says what a call comes to; the kernels are in `triton_setup`, `triton_forward` and `triton_backward`.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

import torch
from torch import Tensor

from algonet.core.launch import Launch

from ..settings import FAR_POINTS
from .triton_backward import gather_kernel
from .triton_plan import Plan, plan_of

Outputs = tuple[list[Tensor], list[Tensor]]


def forward(tensors: list[Tensor], settings: str) -> Outputs:
    """Image, silhouette and depth; saved are, per pixel, the shares' normaliser, the silhouette and the means, and for
    small scenes what was made of the faces."""
    if tensors[1].shape[-1] == 0:
        (image, *rest), saved = forward(with_channel(tensors), settings)
        return [image[..., :0], *rest], saved
    plan = plan_of(tensors, settings)
    outputs, saved = results(plan, tensors[0])
    tensors = arranged(plan, tensors)
    work = saved[1] if plan.keeps else new_work(plan, tensors[0])
    scratch = work.new_empty(plan.most * plan.scratch, dtype=torch.int32) if plan.bin else work
    for passed in plan.passes:
        counters = saved[2] if plan.keeps else new_counters(plan, tensors[0], (passed.items,))
        set_up(passed.setup, tensors, work, counters, scratch)
        if plan.bin:
            passed.list_bins(counters, scratch)
        passed.forward(work, scratch, tensors[3], tensors[2], *outputs, saved[0])
    return outputs, saved


def results(plan: Plan, like: Tensor) -> Outputs:
    """Empty pictures, and what the backward pass needs."""
    new = like.new_empty
    image, plane = plan.shapes
    saved = [new(plan.kept)]
    if plan.keeps:
        saved += [new((*plan.batch, plan.work)), new_counters(plan, like, plan.batch)]
    return [new(image), new(plane), new(plane)], saved


def new_work(plan: Plan, like: Tensor) -> Tensor:
    """Memory for the records and boxes of a pass; each pass overwrites those of the one before."""
    return like.new_empty(plan.most * plan.work)


def new_counters(plan: Plan, like: Tensor, batch: Sequence[int]) -> Tensor:
    return like.new_zeros((*batch, plan.counters), dtype=torch.int32)


def set_up(launch: Launch, tensors: list[Tensor], work: Tensor, counters: Tensor, scratch: Tensor) -> None:
    points, attributes, _, softness, faces, attribute_faces = tensors[:6]
    launch(points, tensors[-1], attributes, softness, faces, attribute_faces, work, counters, scratch)


def arranged(plan: Plan, tensors: list[Tensor]) -> list[Tensor]:
    """The tensors as kernels want them; without a matrix, its place is taken by one that is not read."""
    if plan.copied:
        tensors = [t.contiguous() if i in plan.copied else t for i, t in enumerate(tensors)]
    return tensors if plan.world else [*tensors, tensors[0]]


def fake(tensors: list[Tensor], settings: str) -> Outputs:
    """Empty tensors like those of `forward`."""
    if tensors[1].shape[-1] == 0:
        (image, *rest), saved = fake(with_channel(tensors), settings)
        return [image.new_empty((*image.shape[:-1], 0)), *rest], saved
    return results(plan_of(tensors, settings), tensors[0])


def backward(
    grads: Sequence[Tensor | None], tensors: list[Tensor], saved: list[Tensor], settings: str, needs: list[bool]
) -> list[Tensor | None]:
    """Gradients by points, attributes, background, softness and matrix; no gradient of an output counts as zero."""
    if tensors[1].shape[-1] == 0:
        found = backward([None, *grads[1:]], with_channel(tensors), saved, settings, needs)
        by_background = None if found[2] is None else found[2][..., 1:]
        return [found[0], torch.zeros_like(tensors[1]) if needs[1] else None, by_background, *found[3:]]
    return _backward(tensors, grads, saved, settings, needs)


def _backward(
    tensors: list[Tensor], grads: Sequence[Tensor | None], saved: list[Tensor], settings: str, needs: list[bool]
) -> list[Tensor | None]:
    plan = plan_of(tensors, settings)
    tensors = arranged(plan, tensors)
    points, background, softness = tensors[0], tensors[2], tensors[3]
    faces, attribute_faces = tensors[4:6]
    pictures, strides = pictures_of(grads, points)
    saved = [t if t.is_contiguous() else t.contiguous() for t in saved]
    by_matrix = plan.world and needs[6]
    deterministic = plan.settings.deterministic
    # Apart from each other: torch operators must not return tensors that share memory. What nobody needs is not cleared
    by_points = (points.new_zeros if needs[0] or by_matrix else points.new_empty)((*plan.batch, plan.vertices, 3))
    by_attributes = (points.new_zeros if needs[1] else points.new_empty)((*plan.batch, plan.rows, plan.channels))
    by_softness = points.new_zeros((*plan.batch, 3)) if needs[3] else None
    work = saved[1] if plan.keeps else new_work(plan, points)
    for passed in plan.passes if plan.count else ():
        counters = saved[2] if plan.keeps else new_counters(plan, points, (passed.items,))
        if not plan.keeps:
            set_up(passed.setup_again, tensors, work, counters, work)
        targets = [by_points, by_attributes]
        if deterministic:
            targets = [points.new_zeros(passed.items, 3 * plan.count, n) for n in (3, passed.channels)]
        soft = points.new_zeros(passed.items, plan.count, 3) if needs[3] else softness
        launch = passed.backward(strides, needs[3], not by_matrix)
        launch(
            work, counters, softness, background, *pictures, saved[0],
            points, tensors[-1], tensors[1], faces, attribute_faces, *targets, soft,
        )  # fmt: skip
        items = slice(passed.first, passed.first + passed.items)
        if deterministic:
            gather(targets[0], faces, by_points.view(-1, plan.vertices, 3)[items])
            of_channels = by_attributes.view(-1, plan.rows, plan.channels)[items, :, passed.first_channel :]
            gather(targets[1], attribute_faces, of_channels)
        if by_softness is not None:
            by_softness.view(-1, 3)[items] += soft.sum(1)
    found: list[Tensor | None] = [by_points, by_attributes, None, by_softness, None, None]
    if needs[2]:
        found[2] = _by_background(plan, pictures, strides, saved[0])
    if by_matrix:
        found[0], last = to_the_world(by_points, points, tensors[6])
        found.append(last)
    elif plan.world:
        found.append(None)
    return [g if need else None for g, need in zip(found, needs, strict=True)]


def pictures_of(grads: Sequence[Tensor | None], like: Tensor) -> tuple[list[Tensor], tuple[int, ...]]:
    """Gradients of image, silhouette and depth, and their strides: of an image's items, pixels and channels, and of the
    others' items and pixels. One that is the same everywhere, like that of a sum, is not spread out for that."""
    pictures, strides = [], ()
    for grad, own in zip(grads, (3, 2, 2), strict=True):
        if grad is None:
            grad, found = _nothing(like.dtype, like.device), (0,) * own
        else:
            found = picture_strides(grad.shape, grad.stride(), own)
        if found is None:
            grad = grad.contiguous()
            found = picture_strides(grad.shape, grad.stride(), own)
        pictures.append(grad)
        strides += found or ()
    return pictures, strides


@functools.lru_cache(maxsize=256)
def picture_strides(shape: Sequence[int], strides: Sequence[int], own: int) -> tuple[int, ...] | None:
    """Strides of items, pixels and, with `own` = 3, channels; `None` where rows or items do not follow each other."""
    batch = len(shape) - own
    height, width = shape[batch], shape[batch + 1]
    pixel = strides[batch + 1] if width > 1 else strides[batch]
    if height > 1 and strides[batch] != width * pixel:
        return None
    moving = [(n, s) for n, s in zip(shape[:batch], strides[:batch], strict=True) if n != 1]
    for (n, s), (_, outer) in zip(moving[:0:-1], moving[-2::-1], strict=True):
        if outer != n * s:
            return None
    return (moving[-1][1] if moving else 0, pixel, *strides[batch + 2 :])


_NOTHING: dict[tuple[torch.dtype, torch.device], Tensor] = {}


def _nothing(dtype: torch.dtype, device: torch.device) -> Tensor:
    """The gradient of a picture that nobody asked about."""
    found = _NOTHING.get((dtype, device))
    if found is None:
        found = torch.zeros(4, dtype=dtype, device=device)
        # What a graph is being captured from is not cleared before it runs
        if device.type != "cuda" or not torch.cuda.is_current_stream_capturing():
            _NOTHING[dtype, device] = found
    return found


def to_the_world(by_seen: Tensor, points: Tensor, matrix: Tensor) -> tuple[Tensor, Tensor]:
    """Gradients by points of the world and by the camera's matrix, from the gradient by what the matrix sees of them."""
    inside = points.abs() <= FAR_POINTS
    by_points = torch.where(inside, by_seen @ matrix[..., :3], 0.0)
    limited = points.clamp(-FAR_POINTS, FAR_POINTS)
    return by_points, torch.cat([by_seen.mT @ limited, by_seen.sum(-2)[..., None]], -1)


def _by_background(plan: Plan, pictures: Sequence[Tensor], strides: tuple[int, ...], notes: Tensor) -> Tensor:
    pixels = plan.height * plan.width
    rest = 1 - notes.view(plan.items, pixels, plan.notes)[..., 1]
    shape = (plan.items, pixels, plan.channels)
    image = pictures[0].as_strided(shape, strides[:3], pictures[0].storage_offset())
    depth = pictures[2].as_strided(shape[:2], strides[5:], pictures[2].storage_offset())
    colour = torch.bmm(rest[:, None], image)[:, 0]
    return torch.cat([colour, (rest * depth).sum(1, keepdim=True)], 1).view(*plan.batch, plan.channels + 1)


def gather(pulls: Tensor, faces: Tensor, target: Tensor) -> None:
    """Add the corners' pulls (items, 3 F, n) to their vertices, in the same order on every run."""
    order = torch.argsort(faces.reshape(-1), stable=True)
    ends = torch.arange(target.shape[1] + 1, device=faces.device, dtype=faces.dtype)
    bounds = torch.searchsorted(faces.reshape(-1)[order], ends)
    launch = Launch(
        gather_kernel, (-(-target.shape[1] // 32), pulls.shape[0]),
        (pulls.shape[1], target.shape[1], target.stride(0), target.stride(1)),
        (32, pulls.shape[2]),
        1,
    )  # fmt: skip
    launch(pulls, order, bounds, target)


def with_channel(tensors: list[Tensor]) -> list[Tensor]:
    """Tensors without attributes, given one that is 0 everywhere."""
    points, attributes, background, *rest = tensors
    attributes = attributes.new_zeros((*attributes.shape[:-1], 1))
    return [points, attributes, torch.cat([torch.zeros_like(background), background], -1), *rest]
