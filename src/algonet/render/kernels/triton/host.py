"""The renderer's operations on CUDA devices: what `algonet.core.operation` wants of them.

`plan` says what a call comes to; the kernels are in `setup`, `forward`, `backward`, `pixels` and `surface`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from algonet.core.autograd import plan_from
from algonet.core.cache import cached, constant
from algonet.core.identity import PLANS
from algonet.core.launch import Launch

from ...constants import FAR_POINTS
from ...settings import NormalSettings, RasterSettings
from ...shading import LIGHT, Shading
from . import surface
from .backward import gather_kernel
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
    SURFACE,
    LaunchPlan,
    NormalsPlan,
    Pass,
    Wanted,
    item_stride,
    plan_of,
    shading_constants,
)

Outputs = tuple[list[Tensor], list[Tensor]]


def render_attributes_forward(tensors: list[Tensor], settings: RasterSettings) -> Outputs:
    """Image, silhouette and depth; saved are the samples, and for small scenes what was made of the faces."""
    if tensors[ATTRIBUTES].shape[-1] == 0:
        (image, *rest), saved = render_attributes_forward(with_channel(tensors), settings)
        return [image[..., :0], *rest], saved
    plan = plan_of(tensors, settings)
    like = tensors[POINTS]
    saved = empty_saved(plan, like)
    tensors = arranged(plan, tensors)
    sample(plan, tensors, saved)
    image, silhouette, depth = (
        like.new_empty((*plan.plane, plan.channels)),
        like.new_empty(plan.plane),
        like.new_empty(plan.plane),
    )
    plan.to_pixels.start(
        samples=saved[0], softness=tensors[SOFTNESS], background=tensors[BACKGROUND], image=image, silhouette=silhouette,
        depth=depth,
    )  # fmt: skip
    return [image, silhouette, depth], saved


def render_lit_forward(tensors: list[Tensor], settings: RasterSettings) -> Outputs:
    """Lit image, silhouette, depth and further attributes; saved as for any attributes, then the sums of areas that normals
    come from, if they are made here."""
    plan = plan_of(tensors, settings)
    like = tensors[POINTS]
    saved = empty_saved(plan, like)
    tensors = arranged(plan, tensors)
    if plan.normals is not None:
        sums = plan.normals.sums(tensors[POINTS], tensors[FACES], saved[2] if plan.keeps else None)
        saved, tensors = [*saved, sums], [*tensors, sums]
    sample(plan, tensors, saved)
    image, silhouette, depth = like.new_empty((*plan.plane, 3)), like.new_empty(plan.plane), like.new_empty(plan.plane)
    extra = like.new_empty((*plan.plane, plan.extra))
    plan.to_pixels.start(
        samples=saved[0], softness=tensors[SOFTNESS], background=tensors[BACKGROUND], matrix=tensors[MATRIX],
        eye=tensors[EYE], lights=tensors[LIGHTS], image=image, silhouette=silhouette, depth=depth, extra=extra,
    )  # fmt: skip
    return [image, silhouette, depth, extra], saved


def sample(plan: LaunchPlan, tensors: list[Tensor], saved: list[Tensor]) -> None:
    """Faces to samples."""
    work = saved[1] if plan.keeps else new_work(plan, tensors[POINTS])
    scratch = work.new_empty(plan.most * plan.scratch, dtype=torch.int32) if plan.bin else work
    for part in plan.parts:
        for passed in part:
            counters = saved[2] if plan.keeps else new_counters(plan, tensors[POINTS], (passed.items,))
            set_up(passed.setup, plan, tensors, work, counters, scratch)
            if plan.bin:
                passed.list_bins.start(counters=counters, scratch=scratch)
            passed.forward.start(work=work, scratch=scratch, softness=tensors[SOFTNESS], samples=saved[0])


def empty_saved(plan: LaunchPlan, like: Tensor) -> list[Tensor]:
    """What the backward pass needs, not yet filled."""
    saved = [like.new_empty((*plan.plane, plan.sample))]
    if plan.keeps:
        # The kernel that sums areas clears the counters
        new = like.new_empty if plan.areas else like.new_zeros
        saved += [like.new_empty((*plan.batch, plan.work)), new((*plan.batch, plan.counters), dtype=torch.int32)]
    return saved


def render_attributes_saved(tensors: list[Tensor], settings: RasterSettings) -> list[Tensor]:
    if tensors[ATTRIBUTES].shape[-1] == 0:
        tensors = with_channel(tensors)
    return empty_saved(plan_of(tensors, settings), tensors[POINTS])


def render_lit_saved(tensors: list[Tensor], settings: RasterSettings) -> list[Tensor]:
    plan, points = plan_of(tensors, settings), tensors[POINTS]
    saved = empty_saved(plan, points)
    if plan.normals is not None:
        saved.append(points.new_empty((*points.shape[:-1], 4)))
    return saved


def new_work(plan: LaunchPlan, like: Tensor) -> Tensor:
    """Memory for the records and boxes of a pass; each pass overwrites those of the one before."""
    return like.new_empty(plan.most * plan.work)


def new_counters(plan: LaunchPlan, like: Tensor, batch: Sequence[int]) -> Tensor:
    return like.new_zeros((*batch, plan.counters), dtype=torch.int32)


def set_up(
    launch: Launch, plan: LaunchPlan, tensors: list[Tensor], work: Tensor, counters: Tensor, scratch: Tensor
) -> None:
    launch.start(
        points=tensors[POINTS], matrix=tensors[MATRIX], attributes=tensors[ATTRIBUTES],
        normals=tensors[NORMALS] if plan.lit else tensors[POINTS], softness=tensors[SOFTNESS], faces=tensors[FACES],
        attribute_faces=tensors[ATTRIBUTE_FACES], work=work, counters=counters, scratch=scratch,
    )  # fmt: skip


def arranged(plan: LaunchPlan, tensors: list[Tensor]) -> list[Tensor]:
    """The tensors as kernels want them; without a matrix, its place is taken by one that is not read."""
    if plan.copied:
        tensors = [t.contiguous() if i in plan.copied else t for i, t in enumerate(tensors)]
    return tensors if plan.world else [*tensors, tensors[0]]


def render_attributes_backward(
    grads: Sequence[Tensor | None],
    tensors: list[Tensor],
    saved: list[Tensor],
    settings: RasterSettings,
    needs: list[bool],
) -> list[Tensor | None]:
    """Gradients by points, attributes, background, softness and matrix; no gradient of an output counts as zero."""
    if tensors[ATTRIBUTES].shape[-1] == 0:
        found = render_attributes_backward([None, *grads[1:]], with_channel(tensors), saved, settings, needs)
        by_background = found[BACKGROUND]
        found[BACKGROUND] = None if by_background is None else by_background[..., 1:]
        found[ATTRIBUTES] = torch.zeros_like(tensors[ATTRIBUTES]) if needs[ATTRIBUTES] else None
        return found
    return backward(grads, tensors, saved, settings, needs)


def backward(
    grads: Sequence[Tensor | None],
    tensors: list[Tensor],
    saved: list[Tensor],
    settings: RasterSettings,
    needs: list[bool],
) -> list[Tensor | None]:
    """The way back: pictures to pixels, pixels to samples where there are fewer, samples to faces; part by part."""
    plan = plan_of(tensors, settings)
    tensors = arranged(plan, tensors)
    points, softness = tensors[POINTS], tensors[SOFTNESS]
    pictures, strides = pictures_of(grads, plan, points)
    saved = [t if t.is_contiguous() else t.contiguous() for t in saved]
    if plan.normals is not None:
        tensors = [*tensors, saved[-1]]
    wanted = plan.wanted(tuple(needs))
    # Apart from each other: torch operators must not return tensors that share memory
    found = {i: points.new_empty(shape) for i, shape in wanted.shapes}
    if wanted.softness:
        found[SOFTNESS] = points.new_zeros((*plan.batch, 3))
    # Gradients by what all pixels of an item share are summed by blocks first: the same bits every time
    shared = wanted.shared
    partial = points.new_empty((plan.items, plan.pixel_blocks, plan.sums)) if shared else points
    work = saved[1] if plan.keeps else new_work(plan, points) if wanted.moving else points
    pixel_grads = points.new_empty((plan.most_back, plan.pixels, plan.grad))
    sample_grads = torch.empty_like(pixel_grads) if settings.spacing else pixel_grads
    for part in plan.back_parts if plan.items else ():
        first, items = part[0].first, part[0].items
        # All at once, before anything is added
        launch = plan.pixels_back(strides, first, items, shared, wanted.clears if first == 0 else wanted.cleared)
        sums = partial[first : first + items] if shared else partial
        from_pictures(plan, launch, tensors, saved[0], pictures, pixel_grads, sums, found)
        if settings.spacing and wanted.moving:
            columns, rows = plan.gather_samples(first, items)
            columns.start(softness=softness, pixel_grads=pixel_grads, sample_grads=sample_grads)
            rows.start(softness=softness, pixel_grads=pixel_grads, sample_grads=sample_grads)
        if wanted.moving:
            plan.unit_back(first, items).start(samples=saved[0], softness=softness, pixel_grads=pixel_grads)
        for passed in part if wanted.moving else ():
            if plan.keeps:
                work, counters = (t.view(plan.items, -1)[first:] if first else t for t in saved[1:3])
            else:
                counters = new_counters(plan, points, (items,))
                set_up(passed.setup_again, plan, tensors, work, counters, work)
            pull(passed, tensors, work, counters, pixel_grads, found, wanted)
    gradients = collected(plan, tensors, found, partial, needs)
    by_points = gradients[POINTS]
    if plan.normals is not None and by_points is not None:
        plan.normals.backward(found[NORMALS], points, tensors[FACES], saved[-1], by_points)
    return gradients


render_lit_backward = backward


def from_pictures(
    plan: LaunchPlan, launch: Launch, tensors: list[Tensor], samples: Tensor, pictures: list[Tensor], pixel_grads: Tensor,
    partial: Tensor, found: dict[int, Tensor],
) -> None:  # fmt: skip
    """Gradients by pictures to gradients by what is seen at the pixels."""
    if plan.lit:
        launch.start(
            samples=samples, softness=tensors[SOFTNESS], background=tensors[BACKGROUND], matrix=tensors[MATRIX],
            eye=tensors[EYE], lights=tensors[LIGHTS], grad_image=pictures[0], grad_silhouette=pictures[1],
            grad_depth=pictures[2], grad_extra=pictures[3], pixel_grads=pixel_grads, partial=partial,
            by_points=found[POINTS], by_attributes=found[ATTRIBUTES], by_normals=found[NORMALS],
        )  # fmt: skip
    else:
        launch.start(
            samples=samples, softness=tensors[SOFTNESS], background=tensors[BACKGROUND], grad_image=pictures[0],
            grad_silhouette=pictures[1], grad_depth=pictures[2], pixel_grads=pixel_grads, partial=partial,
            by_points=found[POINTS], by_attributes=found[ATTRIBUTES],
        )  # fmt: skip


def pull(
    passed: Pass, tensors: list[Tensor], work: Tensor, counters: Tensor, pixel_grads: Tensor,
    found: dict[int, Tensor], wanted: Wanted,
) -> None:  # fmt: skip
    """Add what the samples of a pass pull on its faces to the gradients."""
    plan, points = passed.plan, tensors[POINTS]
    faces, attribute_faces = tensors[FACES], tensors[ATTRIBUTE_FACES]
    targets = found
    if plan.settings.deterministic:
        widths = {POINTS: 3, ATTRIBUTES: passed.channels - passed.normals, NORMALS: 3}
        targets = {i: points.new_zeros(passed.items, 3 * plan.count, widths[i]) for i, _ in wanted.shapes}
    soft = points.new_zeros(passed.items, plan.count, 3) if wanted.softness else points
    passed.backward(wanted.softness, wanted.to_world).start(
        work=work, counters=counters, softness=tensors[SOFTNESS], pixel_grads=pixel_grads,
        points=points, matrix=tensors[MATRIX], attributes=tensors[ATTRIBUTES],
        normals=tensors[NORMALS] if plan.lit else points, faces=faces, attribute_faces=attribute_faces,
        by_points=targets[POINTS], by_attributes=targets[ATTRIBUTES],
        by_normals=targets[NORMALS] if plan.lit else points, by_softness=soft,
    )  # fmt: skip
    items = slice(passed.first, passed.first + passed.items)
    if plan.settings.deterministic:
        gather(targets[POINTS], faces, found[POINTS].view(-1, plan.vertices, 3)[items])
        if passed.channels > passed.normals:
            of_channels = found[ATTRIBUTES].view(-1, plan.rows, plan.attributes)[items, :, passed.first_channel :]
            gather(targets[ATTRIBUTES], attribute_faces, of_channels)
        if passed.normals:
            gather(targets[NORMALS], faces, found[NORMALS].view(-1, plan.vertices, 3)[items])
    if wanted.softness:
        found[SOFTNESS].view(-1, 3)[items] += soft.sum(1)


def collected(
    plan: LaunchPlan, tensors: list[Tensor], found: dict[int, Tensor], partial: Tensor, needs: list[bool]
) -> list[Tensor | None]:
    """The gradients in the order of the tensors."""
    if partial.dim() == 3 and partial is not tensors[POINTS]:
        whole = partial.sum(1)
        if not plan.lit:
            found[BACKGROUND] = whole.view(*plan.batch, plan.channels + 1)
        else:
            found[BACKGROUND] = whole[:, :4].view(*plan.batch, 4)
            found[EYE] = whole[:, 4:7].view(*plan.batch, 3)
            found[MATRIX] = whole[:, 7:19].view(*plan.batch, 3, 4)
            found[LIGHTS] = whole[:, 19:].view(*plan.batch, -1, LIGHT)
    if plan.world and needs[MATRIX]:
        found[POINTS], projected = to_the_world(found[POINTS], tensors[POINTS], tensors[MATRIX])
        found[MATRIX] = found[MATRIX] + projected if MATRIX in found else projected
    return [found.get(i) if need else None for i, need in enumerate(needs)]


def pictures_of(grads: Sequence[Tensor | None], plan: LaunchPlan, like: Tensor) -> tuple[list[Tensor], tuple[int, ...]]:
    """Gradients of the pictures, and their strides: of items, pixels and, for those that have any, channels. One that is the
    same everywhere, like that of a sum, is not spread out for that."""
    pictures, strides = [], ()
    for grad, own, dense in zip(grads, (3, 2, 2, 3), plan.picture_strides, strict=False):
        if grad is None or grad.numel() == 0:
            grad, steps = constant((0.0,) * 4, like.dtype, like.device), (0,) * own
        elif grad.is_contiguous():
            steps = dense
        else:
            steps = picture_strides(grad.shape, grad.stride(), own)
        if steps is None:
            grad = grad.contiguous()
            steps = picture_strides(grad.shape, grad.stride(), own)
        pictures.append(grad)
        strides += steps or ()
    return pictures, strides


@cached
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


def to_the_world(by_seen: Tensor, points: Tensor, matrix: Tensor) -> tuple[Tensor, Tensor]:
    """Gradients by points of the world and by the camera's matrix, from the gradient by what the matrix sees of them."""
    inside = points.abs() <= FAR_POINTS
    by_points = torch.where(inside, by_seen @ matrix[..., :3], 0.0)
    limited = points.clamp(-FAR_POINTS, FAR_POINTS)
    return by_points, torch.cat([by_seen.mT @ limited, by_seen.sum(-2)[..., None]], -1)


def gather(pulls: Tensor, faces: Tensor, target: Tensor) -> None:
    """Add the corners' pulls (items, 3 F, n) to their vertices, in the same order on every run."""
    order = torch.argsort(faces.reshape(-1), stable=True)
    ends = torch.arange(target.shape[1] + 1, device=faces.device, dtype=faces.dtype)
    bounds = torch.searchsorted(faces.reshape(-1)[order], ends)
    launch = Launch(
        gather_kernel, (-(-target.shape[1] // 32), pulls.shape[0]), warps=1,
        corners=pulls.shape[1], vertices_count=target.shape[1], stride=target.stride(0), width=target.stride(1),
        BLOCK=32, WIDTH=pulls.shape[2],
    )  # fmt: skip
    launch.start(pulls=pulls, order=order, bounds=bounds, target=target)


def with_channel(tensors: list[Tensor]) -> list[Tensor]:
    """Tensors without attributes, given one that is 0 everywhere."""
    points, attributes, background, *rest = tensors
    attributes = attributes.new_zeros((*attributes.shape[:-1], 1))
    return [points, attributes, torch.cat([torch.zeros_like(background), background], -1), *rest]


# -- normals and light on points


def normals_plan(points: Tensor, faces: Tensor) -> tuple[NormalsPlan, Tensor, Tensor]:
    key = (
        NormalsPlan,
        points.shape,
        points.stride(),
        points.dtype,
        points.device,
        faces.shape,
        faces.stride(),
        faces.dtype,
    )
    plan = PLANS.find(key)
    if plan is None:
        stride = item_stride(tuple(points.shape), points.stride(), 2)
        rows = points.shape[-2]
        made = NormalsPlan(math.prod(points.shape[:-2]), rows, len(faces), 3 * rows if stride is None else stride)
        plan = PLANS.put(key, (made, stride is None or not faces.is_contiguous()))
    made, copied = plan
    return (made, points.contiguous(), faces.contiguous()) if copied else (made, points, faces)


def vertex_normals_forward(tensors: list[Tensor], settings: NormalSettings) -> Outputs:
    plan, points, faces = normals_plan(*tensors)
    normals, sums = plan.forward(points, faces)
    return [normals], [sums]


def vertex_normals_saved(tensors: list[Tensor], settings: NormalSettings) -> list[Tensor]:
    return [tensors[0].new_empty((*tensors[0].shape[:-1], 4))]


def vertex_normals_backward(
    grads: Sequence[Tensor], tensors: list[Tensor], saved: list[Tensor], settings: NormalSettings, needs: list[bool]
) -> list[Tensor | None]:
    plan, points, faces = normals_plan(*tensors)
    by_points = points.new_zeros(points.shape)
    plan.backward(grads[0].contiguous(), points, faces, saved[0].contiguous(), by_points)
    return [by_points, None]


def illuminate_launch(kernel, tensors: list[Tensor], settings: Shading, **more) -> tuple[Launch, list[Tensor]]:
    """A launch of a lighting kernel, and tensors as it wants them: one batch dimension, items contiguous."""
    albedo, normals, positions, eye, lights = (t.contiguous() for t in tensors)
    count, items = positions.shape[-2], math.prod(positions.shape[:-2])
    launch = Launch(
        kernel, (-(-count // SURFACE[0]), items), warps=SURFACE[1],
        count=count, albedo_stride=3 * count, normals_stride=3 * count, positions_stride=3 * count, eye_stride=3,
        lights_stride=LIGHT * len(settings.kinds), BLOCK=SURFACE[0], **shading_constants(settings), **more,
    )  # fmt: skip
    return launch, [albedo, normals, positions, eye, lights]


def illuminate_forward(tensors: list[Tensor], settings: Shading) -> Outputs:
    launch, (albedo, normals, positions, eye, lights) = illuminate_launch(surface.illuminate_kernel, tensors, settings)
    image = positions.new_empty(positions.shape)
    launch.start(albedo=albedo, normals=normals, positions=positions, eye=eye, lights=lights, image=image)
    return [image], []


def illuminate_backward(
    grads: Sequence[Tensor], tensors: list[Tensor], saved: list[Tensor], settings: Shading, needs: list[bool]
) -> list[Tensor | None]:
    shared = needs[3] or needs[4]
    launch, (albedo, normals, positions, eye, lights) = illuminate_launch(
        surface.illuminate_backward_kernel, tensors, settings, NEEDED=shared
    )
    new, shape = positions.new_empty, positions.shape
    by_albedo, by_normals, by_positions = new(shape), new(shape), new(shape)
    blocks = -(-shape[-2] // SURFACE[0])
    partial = new((math.prod(shape[:-2]), blocks, 3 + LIGHT * len(settings.kinds))) if shared else positions
    launch.start(
        albedo=albedo, normals=normals, positions=positions, eye=eye, lights=lights, grad_color=grads[0].contiguous(),
        by_albedo=by_albedo, by_normals=by_normals, by_positions=by_positions, partial=partial,
    )  # fmt: skip
    found: list[Tensor | None] = [by_albedo, by_normals, by_positions, None, None]
    if shared:
        whole = partial.sum(1)
        found[3:] = [whole[:, :3].reshape(eye.shape), whole[:, 3:].reshape(lights.shape)]
    return [g if need else None for g, need in zip(found, needs, strict=True)]


RenderAttributesPlan = plan_from(
    render_attributes_forward, render_attributes_backward, render_attributes_saved, partial=True
)


RenderLitPlan = plan_from(render_lit_forward, render_lit_backward, render_lit_saved, partial=True)


VertexNormalsPlan = plan_from(vertex_normals_forward, vertex_normals_backward, vertex_normals_saved)


IlluminatePlan = plan_from(illuminate_forward, illuminate_backward)
