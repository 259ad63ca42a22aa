"""What objects say of themselves, in a terminal and in a notebook, and slips that are answered in words."""

from __future__ import annotations

import io
import operator
import re
import sys

import pytest
import torch

import algonet
import algonet.fit
import algonet.nn
from algonet.smooth_python.algorithms import bubble_sort


def test_reprs_name_what_matters():
    assert "multiply" in repr(algonet.WhileProgram.library("multiply"))
    assert "k=3" in repr(algonet.SoftTopK(3))
    assert "q=0.3" in repr(algonet.SoftQuantile(0.3))
    assert "1 to 40" in repr(algonet.Anneal(1.0, 40.0, steps=10))
    mesh = algonet.icosphere(1)
    assert repr(mesh) == "Mesh(42 vertices, 80 faces)"
    assert repr(mesh.replace(vertex_colors=mesh.vertices)) == "Mesh(42 vertices, 80 faces, vertex_colors)"
    assert (
        repr(algonet.Camera.look_at((0.0, 1.5, 3.0)))
        == "Camera(position=tensor([0.0000, 1.5000, 3.0000]), perspective=True, near=0.1)"
    )
    cameras = algonet.Camera.look_at(torch.tensor([[0.0, 0.0, 3.0], [3.0, 0.0, 0.0]]))
    assert "matrix" not in repr(cameras)
    targets = algonet.fit.Targets(cameras, silhouettes=torch.zeros(2, 16, 24))
    assert repr(targets) == "Targets(2 views of 16 x 24 pixels: silhouettes)"
    found = algonet.fit.CameraFit(cameras, torch.tensor([0.1, 0.2]), [], [])
    assert repr(found) == f"CameraFit(camera={cameras}, losses=tensor([0.1000, 0.2000]))"


def test_pictures_in_notebooks():
    assert algonet.icosphere(1)._repr_png_()[:4] == b"\x89PNG"
    assert algonet.IFS.preset("koch", points=512)._repr_png_()[:4] == b"\x89PNG"


def test_renderings_in_notebooks():
    from PIL import Image

    cameras = algonet.Camera.look_at(torch.tensor([[0.0, 0.0, 3.0], [3.0, 0.0, 0.0]]))
    out = algonet.SmoothRenderer(12)(algonet.icosphere(1), cameras)
    with Image.open(io.BytesIO(out._repr_png_())) as picture:
        assert picture.size == (24, 12), "both pictures, side by side"
    assert out._replace(rgb=out.rgb[:0])._repr_png_() is None


def test_functions_where_modules_are_wanted():
    for call in (
        lambda: algonet.softness_report(algonet.soft_sort, torch.randn(3)),
        lambda: algonet.activation(lambda x: x, "a", []),
        lambda: algonet.replace_gradually(max, "a", max, [], max, score=max),
    ):
        with pytest.raises(TypeError, match=r"wanted an nn.Module, got the function .*algonet.Insert\(function\)"):
            call()


#: Calls that a newcomer makes, and what the answer must say.
SLIPS = {
    "method by name": (lambda x: algonet.soft_sort(x, method="bitonic"), r"got 'bitonic'; write method=Bitonic\(\)"),
    "layer's method": (lambda x: algonet.SoftSort(method="bitonic"), r"SoftSort: .*write method=Bitonic\(\)"),
    "method's class": (lambda x: algonet.soft_rank(x, method=algonet.Bitonic), r"write method=Bitonic\(\)"),
    "median's method": (
        lambda x: algonet.SoftMedian(method="quick"),
        r"SoftMedian: unknown method 'quick'.*'fast', 'paper'",
    ),
    "relax number": (lambda x: algonet.soft_sort(x, relax=3), r"got 3; write relax=Logistic\(3.0\)"),
    "option by place": (
        lambda x: algonet.soft_sort(x, 3.0),
        r"by name, such as relax=Logistic\(3.0\); only x by place",
    ),
    "negative steepness": (lambda x: algonet.soft_sort(x, steepness=-1.0), r"Say relax=Logistic\(\.\.\.\)"),
    "k": (lambda x: algonet.SoftTopK("3"), "SoftTopK: `k` must be an integer from 0 on, got '3'"),
    "exit": (lambda x: algonet.WhileProgram.library("add", exit="sech"), r"got 'sech'; write exit=Sech\(\)"),
    "list": (
        lambda x: algonet.WhileProgram.library("add")([1.0], [2.0]),
        r"`x1` .*got list; wrap lists in torch.tensor",
    ),
    "steepness of a function": (lambda x: bubble_sort(x, steepness=-1), "bubble_sort: `steepness` must be positive"),
    "size in two": (lambda x: algonet.SmoothRenderer(64, 64), r"got 64; a size is one argument, \(height, width\)"),
    "noise": (lambda x: algonet.SmoothRenderer(8, algonet.StudentT()), r"write FilteredCoverage\(StudentT\("),
    "conorm": (lambda x: algonet.SmoothRenderer(8, conorm="probabilistic"), r"write conorm=Probabilistic\(\)"),
    "surface": (lambda x: algonet.SmoothRenderer(8, surface="lambert"), r"write surface=Lambert\(\)"),
    "background": (lambda x: algonet.SmoothRenderer(8, background="white"), "got 'white'; white is 1.0"),
    "attributes": (
        lambda x: _render(attributes=torch.zeros(3, 2)),
        r"`attributes` must be a floating tensor \(\*batch, 42, C\), got \(3, 2\)",
    ),
    "swapped": (
        lambda x: algonet.fit_camera(x, algonet.icosphere(1)),
        r"got Mesh; call it as fit_camera\(mesh, image\)",
    ),
    "system's size": (lambda x: algonet.IFS(64), r'comes with the call, as in IFS.preset\("fern"\)\(64\)'),
    "system's name": (lambda x: algonet.IFS("fern"), r"write IFS.preset\('fern'\) or IFS.load\('fern'\)"),
    "anneal": (
        lambda x: algonet.Anneal(1.0, 2.0, steps=3).attach(max),
        "Anneal: wanted an nn.Module, got the function max",
    ),
    "loss": (
        lambda x: algonet.sensitivity(torch.nn.Linear(2, 1), "", [], "mse"),
        "`loss` must be a function.*got 'mse'",
    ),
    "layer": (lambda x: algonet.sensitivity(torch.nn.Linear(2, 1), "a", [], max), "no layer 'a'; it has: none inside"),
    "depth": (lambda x: algonet.nn.SmoothDepth(3), "SmoothDepth: `blocks` must be modules.*got 3"),
}


def _render(**options):
    return algonet.SmoothRenderer(8)(algonet.icosphere(1), algonet.Camera.look_at((0.0, 0.0, 3.0)), **options)


@pytest.mark.parametrize("slip", SLIPS)
def test_slips_are_answered_by_what_to_write(slip):
    call, answer = SLIPS[slip]
    with pytest.raises((TypeError, ValueError), match=answer):
        call(torch.randn(4))


def test_slips_in_names_of_options_are_answered():
    x = torch.randn(3)
    for keyword, answer in (
        ("retun_permutation", "did you mean `return_permutation`"),
        ("steepnes", "relax=Logistic"),
        ("zz", "`zz`"),
    ):
        with pytest.raises(TypeError, match=answer):
            algonet.soft_sort(x, **{keyword: 3.0})


@pytest.mark.parametrize(
    ("function", "answer"),
    [
        (algonet.soft_sort, r"soft_sort: .* `network`; did you mean `method=OddEven\(\)`\?"),
        (algonet.SoftSort, r"SoftSort: .* `network`; did you mean `method=OddEven\(\)`\?"),
        (algonet.sorting.which_method, r"which_method: .* `network`; did you mean `methods`\?"),
    ],
)
def test_the_former_name_of_the_method_is_answered(function, answer):
    with pytest.raises(TypeError, match=answer):
        function(torch.randn(3), network=algonet.sorting.OddEven())


@pytest.mark.parametrize("typo", ["sorting.SoftTopk", "render.SmoothRender", "ifs.chaos_gam", "SoftTopk"])
def test_slips_in_names_are_answered(typo: str, capsys):
    """As Python answers at the prompt."""
    with pytest.raises(AttributeError) as raised:
        operator.attrgetter(typo)(algonet)
    sys.__excepthook__(raised.type, raised.value, raised.tb)
    right = {"SoftTopk": "SoftTopK", "SmoothRender": "SmoothRenderer", "chaos_gam": "chaos_game"}
    assert re.search(rf"[Dd]id you mean:? '?{right[typo.split('.')[-1]]}", said := capsys.readouterr().err), said
