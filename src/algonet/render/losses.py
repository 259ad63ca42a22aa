"""What a picture or a mesh should be: losses for fitting. All are means over the batch, and smooth."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from .meshes import Mesh
from .vectors import edges_of


def silhouette_iou_loss(silhouette: Tensor, target: Tensor) -> Tensor:
    """1 - intersection / union of silhouettes (*B, H, W): sum(a b) over sum(a + b - a b), each picture on its own.

    >>> half = torch.tensor([[[1.0, 1.0], [0.0, 0.0]]])
    >>> silhouette_iou_loss(half, torch.ones(1, 2, 2))
    tensor(0.5000)
    """
    _check_same("silhouette_iou_loss", silhouette, target)
    both = (silhouette * target).sum((-2, -1))
    union = (silhouette + target).sum((-2, -1)) - both
    return (1 - both / union.clamp_min(1e-6)).mean()


def image_l1(image: Tensor, target: Tensor) -> Tensor:
    """The mean of |image - target|."""
    _check_same("image_l1", image, target)
    return (image - target).abs().mean()


def image_l2(image: Tensor, target: Tensor) -> Tensor:
    """The mean of (image - target)^2."""
    _check_same("image_l2", image, target)
    return (image - target).square().mean()


class Topology(NamedTuple):
    """What the regularisers need of a mesh's faces: `edges` (E, 2) of vertices, and `pairs` (I, 2) of faces that share one."""

    edges: Tensor
    pairs: Tensor

    @staticmethod
    def of(mesh: Mesh) -> Topology:
        faces = mesh.faces.long()
        edges, index, counts = edges_of(faces)
        owner = torch.arange(len(faces), device=faces.device).repeat(3)
        order = index.argsort(stable=True)
        first = counts.cumsum(0) - counts
        shared = first[counts == 2]
        return Topology(edges, torch.stack([owner[order[shared]], owner[order[shared + 1]]], -1))


def laplacian_loss(mesh: Mesh, topology: Topology | None = None) -> Tensor:
    """The mean squared distance of each vertex to the mean of its neighbours: 0 where the mesh is evenly flat."""
    edges = (topology or Topology.of(mesh)).edges
    vertices = mesh.vertices
    a, b = edges.unbind(-1)
    degree = torch.zeros(vertices.shape[-2], dtype=vertices.dtype, device=vertices.device)
    one = torch.ones(len(edges), dtype=vertices.dtype, device=vertices.device)
    degree = degree.index_add(0, a, one).index_add(0, b, one).clamp_min(1)
    total = torch.zeros_like(vertices).index_add(-2, a, vertices[..., b, :]).index_add(-2, b, vertices[..., a, :])
    return (total / degree[:, None] - vertices).square().sum(-1).mean()


def flatten_loss(mesh: Mesh, topology: Topology | None = None) -> Tensor:
    """The mean of 1 - cos(angle) between the normals of faces that share an edge: 0 where the surface is flat."""
    pairs = (topology or Topology.of(mesh)).pairs
    normals = mesh.face_normals()
    return (1 - (normals[..., pairs[:, 0], :] * normals[..., pairs[:, 1], :]).sum(-1)).mean()


def edge_length_loss(mesh: Mesh, topology: Topology | None = None) -> Tensor:
    """The variance of the edges' lengths relative to their mean: 0 where all edges are equally long."""
    a, b = (topology or Topology.of(mesh)).edges.unbind(-1)
    way = mesh.vertices[..., a, :] - mesh.vertices[..., b, :]
    length = (way.square().sum(-1) + 1e-12).sqrt()
    return (length / length.mean(-1, keepdim=True) - 1).square().mean()


def _check_same(where: str, a: Tensor, b: Tensor) -> None:
    if a.shape != b.shape:
        raise ValueError(f"{where}: both pictures must have one shape, got {tuple(a.shape)} and {tuple(b.shape)}.")


__all__ = [
    "Topology",
    "edge_length_loss",
    "flatten_loss",
    "image_l1",
    "image_l2",
    "laplacian_loss",
    "silhouette_iou_loss",
]
