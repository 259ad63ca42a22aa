"""The renderer's operations on CUDA devices: what `algonet.core.operation` wants of them.

`plan` says what a call comes to; the kernels are in `setup`, `forward`, `backward` and `pixels`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from algonet.core.cache import cached, constant
from algonet.core.identity import Signature
from algonet.core.launch import Launch

from ...lights import LIGHT
from ...reference import to_world
from .plan import (
    ATTRIBUTE_FACES,
    ATTRIBUTES,
    BACKGROUND,
    EYE,
    FACES,
    LIGHTS,
    MATRIX,
    NORMALS,
    POINTS,
    SOFTNESS,
    GradRequest,
    LaunchPlan,
    Pass,
    VertexNormalsPlan,
    batch_stride,
    with_channel,
)

Outputs = tuple[list[Tensor], list[Tensor]]


class RenderAttributesPlan(LaunchPlan):
    """Faces to samples, samples to pictures, lit if the settings have a shading; and back."""

    partial = True

    @classmethod
    def saves(cls, signature: Signature) -> Sequence[tuple[Sequence[int], torch.dtype]]:
        plan, dtype = cls(signature), signature.tensors[0].dtype
        saved = [((*plan.plane, plan.sample), dtype)]
        if plan.keeps:
            saved += [((*plan.batch, plan.work), dtype), ((*plan.batch, plan.counters), torch.int32)]
        return [*saved, ((*plan.batch, plan.vertices, 4), dtype)] if plan.normals is not None else saved

    def forward(self, tensors: Sequence[Tensor]) -> Outputs:
        """Pictures; saved are the samples, for small scenes what was made of the faces, and the sums of areas that normals come
        from, if they are made here."""
        tensors = self.arranged(tensors)
        like = tensors[POINTS]
        new = like.new_empty
        saved = [new((*self.plane, self.sample))]
        if self.keeps:
            # The kernel that sums areas clears the counters
            fill = new if self.areas else like.new_zeros
            saved += [new((*self.batch, self.work)), fill((*self.batch, self.counters), dtype=torch.int32)]
        if self.normals is not None:
            tensors[NORMALS] = self.normals.sums(like, tensors[FACES], saved[2] if self.keeps else None)
            saved.append(tensors[NORMALS])
        work = saved[1] if self.keeps else new(self.most * self.work)
        scratch = work.new_empty(self.most * self.scratch, dtype=torch.int32) if self.bin else work
        for passed in [passed for part in self.parts for passed in part]:
            counters = saved[2] if self.keeps else self.new_counters(like, passed.items)
            self.set_up(passed.setup, tensors, work, counters, scratch)
            if self.bin:
                passed.list_bins.start(counters=counters, scratch=scratch)
            passed.forward.start(work=work, scratch=scratch, softness=tensors[SOFTNESS], samples=saved[0])
        image, silhouette, depth = new((*self.plane, self.shown)), new(self.plane), new(self.plane)
        extra = new((*self.plane, self.extra)) if self.lit else image
        self.to_pixels.start(
            samples=saved[0], softness=tensors[SOFTNESS], background=tensors[BACKGROUND], matrix=tensors[MATRIX],
            eye=tensors[EYE], lights=tensors[LIGHTS], image=image, silhouette=silhouette, depth=depth, extra=extra,
        )  # fmt: skip
        return [image[..., :0] if self.bare else image, silhouette, depth, extra][: 4 if self.lit else 3], saved

    def arranged(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """The tensors as kernels want them; the place of those that are missing is taken by one that is not read."""
        found = with_channel(list(tensors)) if self.bare else list(tensors)
        for i in self.copied:
            found[i] = found[i].contiguous()
        return [*found, *[found[POINTS]] * (NORMALS + 1 - len(found))]

    def new_counters(self, like: Tensor, items: int) -> Tensor:
        return like.new_zeros((items, self.counters), dtype=torch.int32)

    def set_up(self, launch: Launch, tensors: list[Tensor], work: Tensor, counters: Tensor, scratch: Tensor) -> None:
        launch.start(
            points=tensors[POINTS], matrix=tensors[MATRIX], attributes=tensors[ATTRIBUTES], normals=tensors[NORMALS],
            softness=tensors[SOFTNESS], faces=tensors[FACES], attribute_faces=tensors[ATTRIBUTE_FACES], work=work,
            counters=counters, scratch=scratch,
        )  # fmt: skip

    def backward(
        self, grads: Sequence[Any], tensors: Sequence[Tensor], saved: Sequence[Tensor], needs: Sequence[bool]
    ) -> list[Tensor | None]:
        """Pictures to pixels, pixels to samples where there are fewer, samples to faces; part by part. No gradient of an output
        counts as zero."""
        given, tensors = tensors, self.arranged(tensors)
        points, softness = tensors[POINTS], tensors[SOFTNESS]
        grads = [None if self.bare else grads[0], *grads[1:], None]
        pictures, strides = pictures_of(grads[:4], self, points)
        saved = [t if t.is_contiguous() else t.contiguous() for t in saved]
        if self.normals is not None:
            tensors[NORMALS] = saved[-1]
        wanted = self.wanted(list(needs))
        # Apart from each other: torch operators must not return tensors that share memory
        found = {i: points.new_empty(shape) for i, shape in wanted.shapes}
        if wanted.softness:
            found[SOFTNESS] = points.new_zeros((*self.batch, 3))
        # Gradients by what all pixels of an item share are summed by blocks first: the same bits every time
        shared = wanted.shared
        partial = points.new_empty((self.items, self.pixel_blocks, self.sums)) if shared else points
        work = saved[1] if self.keeps else points.new_empty(self.most * self.work) if wanted.moving else points
        pixel_grads = points.new_empty((self.most_back, self.pixels, self.grad))
        sample_grads = torch.empty_like(pixel_grads) if self.settings.spacing else pixel_grads
        for part in self.back_parts if self.items else ():
            first, items = part[0].first, part[0].items
            # All at once, before anything is added
            self.pixels_back(strides, first, items, shared, wanted.clears if first == 0 else (0, 0, 0)).start(
                samples=saved[0], softness=softness, background=tensors[BACKGROUND], matrix=tensors[MATRIX],
                eye=tensors[EYE], lights=tensors[LIGHTS], grad_image=pictures[0], grad_silhouette=pictures[1],
                grad_depth=pictures[2], grad_extra=pictures[3], pixel_grads=pixel_grads,
                partial=partial[first : first + items] if shared else partial, grad_points=found[POINTS],
                grad_attributes=found[ATTRIBUTES], grad_normals=found.get(NORMALS, points),
            )  # fmt: skip
            if not wanted.moving:
                continue
            columns, rows, unit = self.samples_back(first, items)
            if self.settings.spacing:
                columns.start(softness=softness, pixel_grads=pixel_grads, sample_grads=sample_grads)
                rows.start(softness=softness, pixel_grads=pixel_grads, sample_grads=sample_grads)
            unit.start(samples=saved[0], softness=softness, pixel_grads=pixel_grads)
            for passed in part:
                if self.keeps:
                    work, counters = (t.view(self.items, -1)[first:] if first else t for t in saved[1:3])
                else:
                    counters = self.new_counters(points, items)
                    self.set_up(passed.setup_again, tensors, work, counters, work)
                self.pull(passed, tensors, work, counters, pixel_grads, found, wanted)
        if shared:
            self.split(partial.sum(1), found)
        if self.world and needs[MATRIX]:
            found[POINTS], projected = to_world(found[POINTS], points, tensors[MATRIX])
            found[MATRIX] = found[MATRIX] + projected if MATRIX in found else projected
        if self.normals is not None and needs[POINTS]:
            self.normals.spread.start(
                points=points,
                faces=tensors[FACES],
                sums=saved[-1],
                grad_normals=found[NORMALS],
                grad_points=found[POINTS],
            )
        if self.bare:
            found[ATTRIBUTES] = torch.zeros_like(given[ATTRIBUTES])
        return [found.get(i) if need else None for i, need in enumerate(needs)]

    def split(self, whole: Tensor, found: dict[int, Tensor]) -> None:
        """Sums over the pixels of each item as gradients."""
        end = self.shown + 1
        found[BACKGROUND] = whole[:, 1 if self.bare else 0 : end].reshape(*self.batch, -1)
        if self.lit:
            found[EYE] = whole[:, end : end + 3].view(*self.batch, 3)
            found[MATRIX] = whole[:, end + 3 : end + 15].view(*self.batch, 3, 4)
            found[LIGHTS] = whole[:, end + 15 :].view(*self.batch, -1, LIGHT)

    def pull(
        self, passed: Pass, tensors: list[Tensor], work: Tensor, counters: Tensor, pixel_grads: Tensor,
        found: dict[int, Tensor], wanted: GradRequest,
    ) -> None:  # fmt: skip
        """Add what the samples of a pass pull on its faces to the gradients."""
        points, faces, attribute_faces = tensors[POINTS], tensors[FACES], tensors[ATTRIBUTE_FACES]
        targets, fixed = found, self.settings.deterministic
        if fixed:
            widths = {POINTS: 3, ATTRIBUTES: passed.channels - passed.normals, NORMALS: 3}
            targets = {i: points.new_zeros(passed.items, 3 * self.count, widths[i]) for i, _ in wanted.shapes}
        soft = points.new_zeros(passed.items, self.count, 3) if wanted.softness else points
        passed.backward(wanted.softness, wanted.to_world).start(
            work=work, counters=counters, softness=tensors[SOFTNESS], pixel_grads=pixel_grads,
            points=points, matrix=tensors[MATRIX], attributes=tensors[ATTRIBUTES], normals=tensors[NORMALS], faces=faces,
            attribute_faces=attribute_faces, grad_points=targets[POINTS], grad_attributes=targets[ATTRIBUTES],
            grad_normals=targets.get(NORMALS, points), grad_softness=soft,
        )  # fmt: skip
        items = slice(passed.first, passed.first + passed.items)
        if fixed:
            # Adding by index sorts first there, and gives the same bits in every run
            first = passed.first_channel
            for i, pulls in targets.items():
                if pulls.shape[-1] and (i != NORMALS or passed.normals):
                    target = found[i].view(self.items, -1, found[i].shape[-1])[items]
                    if i == ATTRIBUTES:
                        target = target[..., first : first + pulls.shape[-1]]
                    rows = attribute_faces if i == ATTRIBUTES else faces
                    target.transpose(0, 1).index_put_(
                        (rows.long().reshape(-1),), pulls.transpose(0, 1), accumulate=True
                    )
        if wanted.softness:
            found[SOFTNESS].view(-1, 3)[items] += soft.sum(1)


RenderLitPlan = RenderAttributesPlan
__all__ = ["RenderAttributesPlan", "RenderLitPlan", "VertexNormalsPlan"]


def pictures_of(grads: Sequence[Tensor | None], plan: LaunchPlan, like: Tensor) -> tuple[list[Tensor], tuple[int, ...]]:
    """Gradients of the pictures, and their strides: of items, pixels and, for those that have any, channels. One that is the
    same everywhere, like that of a sum, is not spread out for that."""
    pictures, strides = [], ()
    for grad, own, dense in zip(grads, (3, 2, 2, 3), plan.picture_strides, strict=True):
        if grad is None or grad.numel() == 0:
            grad, steps = constant((0.0,) * 4, like.dtype, like.device), (0,) * own
        else:
            steps = dense if grad.is_contiguous() else picture_strides(grad.shape, grad.stride(), own)
        if steps is None:
            grad, steps = grad.contiguous(), dense
        pictures.append(grad)
        strides += steps
    return pictures, strides


@cached
def picture_strides(shape: tuple[int, ...], strides: tuple[int, ...], own: int) -> tuple[int, ...] | None:
    """Strides of items, pixels and, with `own` = 3, channels; `None` where rows or items do not follow each other."""
    batch = len(shape) - own
    height, width = shape[batch], shape[batch + 1]
    pixel = strides[batch + 1] if width > 1 else strides[batch]
    if height > 1 and strides[batch] != width * pixel:
        return None
    item = batch_stride(shape[:batch], strides[:batch], 0)
    return None if item is None else (item, pixel, *strides[batch + 2 :])
