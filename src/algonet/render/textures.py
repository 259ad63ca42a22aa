"""Textures: pictures on surfaces, looked up smoothly at the size at which they are seen."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from algonet.core.cache import TENSORS
from algonet.core.checks import broadcast_shapes

if TYPE_CHECKING:
    from .meshes import Mesh


from algonet.core.tracing import outside_autocast

from .coverage import twice_area
from .vectors import FLIP_AREA, step_between

#: The lookup's weight at a distance of d texels is exp(-SHARPNESS / (1 - d^2 / 4)), d < 2: C-infinity, about as narrow as
#: bilinear interpolation, and true to linear gradients within 1 % of their slope.
SHARPNESS = 7.0
#: How levels are blended: the smaller, the nearer to linearly, and the sharper the bend at whole levels.
BLEND = 0.6
#: Standard deviation, in texels of its level, of a lookup (0.45) together with the square (0.29) that a texel is the mean of.
TEXEL_SPREAD = 0.54
#: Standard deviation, in pixels, of what a pixel is taken to see, besides the noise.
PIXEL_SPREAD = 0.5


@outside_autocast
def sample_texture(texture: Tensor, uv: Tensor) -> Tensor:
    """Bilinear lookup of `texture` (*B, h, w, C) at `uv` (*B, H, W, 2), u to the right and v up; edges are repeated.

    Differentiable in both; piecewise linear in uv between texel centres.

    >>> checker = torch.tensor([[[0.0], [1.0]], [[1.0], [0.0]]])
    >>> sample_texture(checker, torch.tensor([[[0.25, 0.75], [0.75, 0.75]]]))[0, :, 0]
    tensor([0., 1.])
    """
    _check_texture("sample_texture", texture, uv)
    batch = uv.shape[:-3]
    grid = torch.stack([2 * uv[..., 0] - 1, 1 - 2 * uv[..., 1]], -1).reshape(-1, *uv.shape[-3:])
    image = texture.to(uv.dtype).movedim(-1, -3)
    image = image.reshape(-1, *image.shape[-3:]).expand(grid.shape[0], *image.shape[-3:])
    sampled = torch.nn.functional.grid_sample(image, grid, mode="bilinear", padding_mode="border", align_corners=False)
    return sampled.movedim(-3, -1).reshape(*batch, *uv.shape[-3:-1], texture.shape[-1])


@outside_autocast
def sample_pyramid(texture: Tensor, uv: Tensor, level: Tensor) -> Tensor:
    """Lookup of `texture` (*B, h, w, C) at `uv` (*B, H, W, 2), as `sample_texture`, blurred to `level` (*B, H, W).

    Level l of the texture's pyramid has texels 2^l times as large, each the mean of those it covers; levels in between are
    blended, and texels weighted, by C-infinity weights: the result is C-infinity in uv and level, and linear in the texture.
    Level 0 is the texture, smoothed by half a texel: a checkerboard of single texels keeps 46 % of its contrast, one of squares
    of two 70 %. Levels beyond the last, one texel, are the last. O(H W) and the pyramid.

    >>> checker = torch.tensor([[[0.0], [1.0]], [[1.0], [0.0]]])
    >>> corner = torch.tensor([[[0.25, 0.75]]])
    >>> [round(float(sample_pyramid(checker, corner, torch.tensor([[level]]))), 2) for level in (0.0, 0.5, 9.0)]
    [0.15, 0.32, 0.5]
    """
    _check_texture("sample_pyramid", texture, uv)
    table, sizes = _pyramid(texture.to(uv.dtype))
    last = len(sizes) - 1
    if texture.dim() > 3:
        # One table after the other: texels are found by a number alone
        items, count = math.prod(texture.shape[:-3]), table.shape[-2]
        table = table.reshape(-1, table.shape[-1])
        own = count * torch.arange(items, device=uv.device).reshape(*texture.shape[:-3], 1, 1)
    else:
        own = torch.zeros((), dtype=torch.long, device=uv.device)
    level = level.clamp(0, last)
    lower = level.detach().floor().clamp_max(max(0, last - 1)).long()
    found = _lookup(table, sizes, own, uv, lower)
    if last == 0:
        return found
    upper = _lookup(table, sizes, own, uv, lower + 1)
    return torch.lerp(found, upper, _share_of_next(level - lower)[..., None])


def _share_of_next(t: Tensor) -> Tensor:
    """How much the next level counts a share t of the way to it: w(1 - t) / (w(t) + w(1 - t)), w(t) = exp(-BLEND / (1 - t^2)).

    Flat at 0 and 1, with all derivatives: what lies beyond the first and last level goes on smoothly.
    """
    return step_between(t, lambda t: BLEND / (1 - t * t) - BLEND / (t * (2 - t)))


def texture_levels(
    points: Tensor, faces: Tensor, uv: Tensor, uv_faces: Tensor, texels: tuple[int, int], spread: Tensor | float
) -> Tensor:
    """The level (*B, F, 3) at which each corner of each face should show its texture of (height, width) `texels`.

    `points` (*B, V, 3) are (x w, y w, w) in pixels; `spread` is the standard deviation of the noise in pixels. With rho the
    root mean square of the texels per pixel over directions, what a pixel sees has a standard deviation of
    sigma = rho sqrt(PIXEL_SPREAD^2 + spread^2) texels. The level log2(1 + (sigma / TEXEL_SPREAD)^2) / 2 adds it to that of
    the lookup.
    """
    corners = points[..., faces.long(), :]
    w = corners[..., 2]
    screen = corners[..., :2] / w[..., None]
    places = uv[..., uv_faces.long(), :] * uv.new_tensor([texels[1], texels[0]])
    area = twice_area(screen)
    inverse = (area / (area * area + FLIP_AREA * FLIP_AREA))[..., None]
    squares = []
    for i in range(3):
        # How fast texels pass at corner i, from the slopes of the other corners' shares and their depths
        slope = torch.zeros_like(screen[..., 0, :, None] * places[..., 0, None, :])
        for j in ((i + 1) % 3, (i + 2) % 3):
            opposite = screen[..., (j + 2) % 3, :] - screen[..., (j + 1) % 3, :]
            share = torch.stack([opposite[..., 1], -opposite[..., 0]], -1) * inverse
            factor = (w[..., i] / w[..., j])[..., None]
            slope = slope + (factor * share)[..., :, None] * (places[..., j, :] - places[..., i, :])[..., None, :]
        squares.append(slope.square().sum((-2, -1)))
    wide = spread if isinstance(spread, (int, float)) else spread[..., None, None]
    footprint = (wide * wide + PIXEL_SPREAD * PIXEL_SPREAD) / (TEXEL_SPREAD * TEXEL_SPREAD)
    return torch.log2(1 + (torch.stack(squares, -1) / 2 * footprint).clamp_max(1e18)) / 2


def _pyramid(texture: Tensor) -> tuple[Tensor, list[tuple[int, int]]]:
    """The texels (*B, T, C) of all levels, row by row, and the height and width of each."""
    batch, channels = texture.shape[:-3], texture.shape[-1]
    image = texture.movedim(-1, -3).reshape(-1, channels, *texture.shape[-3:-1])
    levels, sizes = [image.flatten(-2)], [(int(image.shape[-2]), int(image.shape[-1]))]
    while max(sizes[-1]) > 1:
        sizes.append((max(1, sizes[-1][0] // 2), max(1, sizes[-1][1] // 2)))
        image = torch.nn.functional.adaptive_avg_pool2d(image, sizes[-1])
        levels.append(image.flatten(-2))
    return torch.cat(levels, -1).mT.reshape(*batch, -1, channels), sizes


def _lookup(table: Tensor, sizes: list[tuple[int, int]], own: Tensor, uv: Tensor, level: Tensor) -> Tensor:
    """Colours (*B, H, W, C) at `uv`, each from its own level (*B, H, W)."""
    offsets = [0]
    for height, width in sizes:
        offsets.append(offsets[-1] + height * width)
    rows, columns = (torch.tensor([size[k] for size in sizes], device=uv.device)[level] for k in (0, 1))
    first = torch.tensor(offsets[:-1], device=uv.device)[level] + own
    column, across = _taps(uv[..., 0] * columns - 0.5, columns)
    row, down = _taps((1 - uv[..., 1]) * rows - 0.5, rows)
    index = first[..., None, None] + row[..., :, None] * columns[..., None, None] + column[..., None, :]
    return torch.einsum("...yxc,...y,...x->...c", table[index], down, across)


def _taps(place: Tensor, count: Tensor) -> tuple[Tensor, Tensor]:
    """The four texels (..., 4) around a place, edges repeated, and their weights, which sum to 1."""
    # Beyond the edge there is nothing new; huge numbers would not be integers
    place = torch.minimum(place.clamp_min(-3.0), count.to(place.dtype) + 2)
    base = place.detach().floor()
    number = base[..., None] + torch.arange(-1, 3, device=place.device, dtype=place.dtype)
    away = place[..., None] - number
    inside = 1 - away * away / 4
    there = inside > 0
    weight = torch.where(there, torch.exp(-SHARPNESS / torch.where(there, inside, 1.0)), 0.0)
    index = torch.minimum(number.long().clamp_min(0), count[..., None] - 1)
    return index, weight / weight.sum(-1, keepdim=True)


def _check_texture(where: str, texture: Tensor, uv: Tensor) -> None:
    if texture.dim() not in (3, uv.dim()):
        raise ValueError(
            f"{where}: `texture` must be (h, w, C) or share the batch of `uv`: "
            f"got {tuple(texture.shape)} and {tuple(uv.shape)}."
        )


#: As many pieces as pixels, within these bounds: seen whole, a mesh then has pieces of about a pixel.
LEAST_PIECES, MOST_PIECES = 1 << 14, 1 << 18
#: Standard deviation, in edges of a piece, of what a corner's colour is the mean over: what lies between corners counts too.
PIECE_SPREAD = 0.3
#: Corners are looked up so far, in edges of a piece, inside their face: texels beyond it may belong to any other.
INSIDE = 0.35


class Pieces(NamedTuple):
    """`vertices` and `normals` (*B, P, 3) and `faces` (Q, 3) of the pieces; `table` (*B, P, 3 + C): colour and attributes."""

    vertices: Tensor
    normals: Tensor
    faces: Tensor
    table: Tensor


def cut_faces(mesh: Mesh, size: tuple[int, int], attributes: Tensor | None) -> Pieces:
    """The mesh with each face cut into k^2 pieces for a picture of `size`; k depends on shapes only.

    The surface stays what it was, and additive coverage shows the same silhouette. Linear in vertices, texture and attributes.
    """
    assert mesh.texture is not None
    assert mesh.uv is not None
    faces, texture = mesh.faces.long(), mesh.texture.to(mesh.vertices)
    k = _cuts(len(faces), size, int(texture.shape[-3]) * int(texture.shape[-2]))
    lattice, cells = _lattice(k, mesh.vertices), _cells(k, mesh.faces.device)
    corners = mesh.uv.to(mesh.vertices)[(faces if mesh.uv_faces is None else mesh.uv_faces.long())]
    places = (lattice + INSIDE / k) / (1 + 3 * INSIDE / k)
    uv = torch.einsum("ni,fic->fnc", places, corners)
    uv = uv.expand(*texture.shape[:-3], *uv.shape)
    level = _piece_levels(corners, k, texture)[:, None].expand(uv.shape[:-1])
    colors = sample_pyramid(texture, uv, level).flatten(-3, -2)
    normals = _along(mesh.vertex_normals(), faces, lattice)
    table = colors
    if attributes is not None and attributes.shape[-1]:
        more = _along(attributes.to(mesh.vertices), faces, lattice)
        batch = broadcast_shapes(colors.shape[:-2], more.shape[:-2])
        table = torch.cat([colors.expand(*batch, -1, -1), more.expand(*batch, -1, -1)], -1)
    first = torch.arange(len(faces), device=faces.device)[:, None, None] * lattice.shape[0]
    return Pieces(_along(mesh.vertices, faces, lattice), normals, (first + cells).flatten(0, 1), table)


def _cuts(faces: int, size: tuple[int, int], texels: int) -> int:
    """How many pieces an edge is cut into; pieces smaller than texels show nothing more."""
    wanted = min(max(size[0] * size[1], LEAST_PIECES), MOST_PIECES, 2 * texels)
    return max(1, math.isqrt(wanted // faces))


def _along(values: Tensor, faces: Tensor, lattice: Tensor) -> Tensor:
    """Values (*B, V, C) of vertices at the lattice of every face, (*B, F n, C)."""
    return torch.einsum("ni,...fic->...fnc", lattice, values[..., faces, :]).flatten(-3, -2)


def _piece_levels(corners: Tensor, k: int, texture: Tensor) -> Tensor:
    """The level (F,) of the texture's pyramid whose texels are as wide as the k^2 pieces of each face with uv (F, 3, 2)."""
    edges = (corners - corners.roll(1, 1)) * corners.new_tensor([texture.shape[-2], texture.shape[-3]])
    squares = edges.square().sum((-2, -1)) / (3 * k * k)
    return torch.log2(1 + (squares * (PIECE_SPREAD / TEXEL_SPREAD) ** 2).clamp_max(1e18)) / 2


def _lattice(k: int, like: Tensor) -> Tensor:
    """Shares (n, 3) of the corners at the points of a triangle whose edges are cut into k."""

    def make() -> Tensor:
        rows = [(i / k, j / k, (k - i - j) / k) for i in range(k + 1) for j in range(k + 1 - i)]
        return torch.tensor(rows, dtype=like.dtype, device=like.device)

    return TENSORS.get(("lattice", k, like.dtype, like.device), make)


def _cells(k: int, device: torch.device) -> Tensor:
    """The k^2 pieces (k^2, 3) of such a triangle, turning the way it does."""
    return TENSORS.get(("cells of a lattice", k, device), lambda: torch.tensor(_cell_rows(k), device=device))


def _cell_rows(k: int) -> list[tuple[int, int, int]]:
    def at(i: int, j: int) -> int:
        return i * (2 * k + 3 - i) // 2 + j

    cells = []
    for i in range(k):
        for j in range(k - i):
            cells.append((at(i + 1, j), at(i, j + 1), at(i, j)))
            if i + j < k - 1:
                cells.append((at(i + 1, j), at(i + 1, j + 1), at(i, j + 1)))
    return cells
