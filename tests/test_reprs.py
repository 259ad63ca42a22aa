"""What objects say of themselves, in a terminal and in a notebook, and slips that are answered in words."""

from __future__ import annotations

import pytest
import torch

import algonet


def test_reprs_name_what_matters():
    assert "multiply" in repr(algonet.WhileProgram.library("multiply"))
    assert "k=3" in repr(algonet.SoftTopK(3))
    assert "q=0.3" in repr(algonet.SoftQuantile(0.3))
    assert "1 to 40" in repr(algonet.Anneal(1.0, 40.0, steps=10))
    mesh = algonet.icosphere(1)
    assert repr(mesh) == "Mesh(42 vertices, 80 faces)"
    assert repr(mesh.replace(vertex_colors=mesh.vertices)) == "Mesh(42 vertices, 80 faces, vertex_colors)"


def test_pictures_in_notebooks():
    assert algonet.icosphere(1)._repr_png_()[:4] == b"\x89PNG"
    assert algonet.IFS.preset("koch", points=512)._repr_png_()[:4] == b"\x89PNG"
    report = algonet.softness_report(algonet.SoftSort(), torch.randn(2, 4))
    assert "<table>" in report._repr_html_()


def test_functions_where_modules_are_wanted():
    for call in (
        lambda: algonet.softness_report(algonet.soft_sort, torch.randn(3)),
        lambda: algonet.activation(lambda x: x, "a", []),
        lambda: algonet.replace_gradually(max, "a", max, [], max, score=max),
    ):
        with pytest.raises(TypeError, match=r"wanted an nn.Module, got the function .*algonet.Insert\(function\)"):
            call()
