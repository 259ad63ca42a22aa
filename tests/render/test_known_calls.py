"""Calls whose form was checked before take a short way: same pictures, same errors, nothing mixed up.

On the CPU every call looks at its numbers, so here it is told that it cannot.
"""

import pytest
import torch

from algonet.core import tracing
from algonet.core.identity import PLANS
from algonet.relax import BoundedSum, StudentT
from algonet.render import Camera, FilteredCoverage, SmoothRenderer, icosphere, render_attributes
from algonet.render.functional import Pictures

BALL = icosphere(1)
CAMERA = Camera.look_at((0.0, 0.5, 3.0))


def known() -> int:
    """How many forms of calls are known."""
    return sum(isinstance(PLANS.find(key), Pictures) for key in PLANS)


@pytest.fixture(autouse=True)
def unreadable(monkeypatch):
    monkeypatch.setattr(tracing, "readable", lambda *tensors: False)
    PLANS.clear()
    yield
    PLANS.clear()


def picture(vertices=BALL.vertices, camera=CAMERA, attributes=BALL.vertices, faces=BALL.faces, size=(8, 9), **options):
    return render_attributes(vertices, faces, attributes, camera, size=size, **{"backend": "reference", **options})


def test_the_second_call_is_known_and_gives_the_same():
    vertices, colours = (BALL.vertices.clone().requires_grad_() for _ in range(2))
    results = []
    for before in (0, 1):
        assert known() == before
        out = picture(vertices, attributes=colours)
        results.append([*out, *torch.autograd.grad(sum(t.square().sum() for t in out), [vertices, colours])])
    assert known() == 1
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))


OPTIONS = [
    {},
    {"size": (9, 8)},
    {"background": 0.5},
    {"background": (0.5, 0.25, 1.0)},
    {"background": torch.tensor([0.1, 0.2, 0.3])},
    {"background_depth": 9.0},
    {"coverage": FilteredCoverage(StudentT(scale=3.0))},
    {"coverage": FilteredCoverage(StudentT(scale=torch.tensor(0.5)))},
    {"coverage": FilteredCoverage(StudentT(df=4))},
    {"coverage": FilteredCoverage(StudentT(scale=0.1), units="ndc")},
    {"conorm": BoundedSum(2)},
    {"depth_steepness": 1.0},
    {"depth_steepness": torch.tensor(0.1)},
    {"two_sided": False},
    {"backend": "auto"},
    {
        "backend": "numba",
        "epsilon": 0.1,
    },  # the reference leaves nothing out; 0.01 would still reach nearly all of so small a picture
    {"attribute_faces": BALL.faces.flip(0)},
    {"attributes": torch.rand(BALL.vertices.shape[0], 2)},
    {"camera": Camera.look_at((0.0, 0.5, 3.0), near=1.5)},
    {"camera": Camera.orthographic((0.0, 0.5, 3.0))},
    {"camera": Camera.look_at(torch.tensor([[0.0, 0.5, 3.0], [1.0, 0.0, 2.5]]))},
    {"vertices": torch.stack([BALL.vertices, BALL.vertices * 0.5])},
    {"vertices": BALL.vertices.double(), "attributes": BALL.vertices.double()},
    {"vertices": BALL.vertices.half()},
]


def test_every_option_is_part_of_what_is_known():
    alone = []
    for options in OPTIONS:
        PLANS.clear()
        alone.append(picture(**options))
    PLANS.clear()
    for _ in range(2):
        for options, expected in zip(OPTIONS, alone, strict=True):
            for found, right in zip(picture(**options), expected, strict=True):
                assert found.dtype == right.dtype
                assert torch.equal(found, right), options
    for i, one in enumerate(alone):
        assert not any(
            one.image.shape == other.image.shape and all(torch.equal(a, b) for a, b in zip(one, other, strict=True))
            for other in alone[:i]
            if OPTIONS[i] != {"backend": "auto"}
        ), OPTIONS[i]


def test_softness_that_changes_is_followed():
    colored = BALL.replace(vertex_colors=BALL.vertices)
    renderer = SmoothRenderer((8, 9), depth_steepness=5.0, backend="reference")
    seen = []
    for _ in range(2):
        for scale, steepness in ((0.7, 5.0), (2.0, 5.0), (2.0, 0.5)):
            renderer.set_scale(scale)
            renderer.set_softness("depth_steepness", steepness)
            seen.append(renderer(colored, CAMERA).rgb)
    assert all(torch.equal(a, b) for a, b in zip(seen[:3], seen[3:], strict=True))
    assert not torch.allclose(seen[0], seen[1])
    assert not torch.allclose(seen[1], seen[2])
    scale = torch.tensor(0.7, requires_grad=True)
    for value in (0.7, 3.0):
        with torch.no_grad():
            scale.fill_(value)
        out = picture(coverage=FilteredCoverage(StudentT(scale=scale)))
        assert torch.allclose(out.image, picture(coverage=FilteredCoverage(StudentT(scale=value))).image, atol=1e-6)
        assert torch.autograd.grad(out.silhouette[0].sum(), scale)[0].abs() > 1e-6


def test_a_camera_that_moves_is_followed():
    matrix = CAMERA.matrix.clone()
    camera = Camera(matrix, CAMERA.position)
    first = picture(camera=camera).image
    matrix[0] *= 1.5
    assert not torch.allclose(first, picture(camera=camera).image)
    matrix.requires_grad_()
    for _ in range(2):
        out = picture(camera=camera)
        assert torch.autograd.grad(out.silhouette.sum(), matrix)[0].abs().max() > 1e-3


@pytest.mark.parametrize(
    ("wrong", "match"),
    [
        ({"vertices": [[0.0, 0.0, 0.0]]}, "vertices"),
        ({"vertices": BALL.vertices[:, :2]}, "vertices"),
        ({"faces": BALL.faces.float()}, "faces"),
        ({"faces": BALL.faces.tolist()}, "faces"),
        ({"attributes": BALL.vertices[1:]}, "attributes"),
        ({"attributes": None}, "attributes"),
        ({"attribute_faces": BALL.faces[1:]}, "attribute_faces"),
        ({"size": (0, 9)}, "size"),
        ({"size": (8, True)}, "size"),
        ({"epsilon": 0.7}, "epsilon"),
        ({"coverage": StudentT()}, "coverage"),
        ({"background": torch.zeros(4)}, "background"),
        ({"backend": "fortran"}, "backend"),
    ],
)
def test_errors_come_after_known_calls_too(wrong, match):
    picture()
    picture(attribute_faces=BALL.faces)
    with pytest.raises((TypeError, ValueError), match=match):
        picture(**wrong)


def test_what_a_mode_made_is_not_kept():
    with torch.inference_mode():
        picture(background=0.25)
    leaf = BALL.vertices.clone().requires_grad_()
    picture(leaf, background=0.25).silhouette.sum().backward()
    assert leaf.grad.abs().max() > 1e-3
    size = known()
    torch.func.grad(lambda v: picture(v, size=(5, 5)).silhouette.sum())(BALL.vertices)
    assert known() == size
