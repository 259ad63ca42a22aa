"""Calls that are nearly right: a square size as one number, and mistakes answered in words."""

from __future__ import annotations

import math

import pytest

from algonet.relax import Logistic, StudentT
from algonet.render import Camera, DirectionalLight, EdgeProduct, FilteredCoverage, SmoothRenderer, icosphere

CAMERA = Camera.look_at((0.0, 0.0, 3.0))


def test_one_number_is_a_square():
    assert SmoothRenderer(16, backend="reference")(icosphere(0), CAMERA).rgb.shape == (16, 16, 3)


def test_mistakes_are_answered():
    with pytest.raises(TypeError, match=r"`coverage` must be a coverage such as .*got StudentT\("):
        SmoothRenderer(16, StudentT(df=8, scale=1.0))
    renderer = SmoothRenderer(16)
    with pytest.raises(TypeError, match=r"must be a Mesh, got Camera; call it as renderer\(mesh, camera, lights\)"):
        renderer(CAMERA, icosphere(0))
    with pytest.raises(TypeError, match="second argument must be a Camera, got list"):
        renderer(icosphere(0), [CAMERA])
    with pytest.raises(TypeError, match="`lights` must be a sequence"):
        renderer(icosphere(0), CAMERA, DirectionalLight())


@pytest.mark.parametrize("coverage", [FilteredCoverage(), EdgeProduct(Logistic(1.0))], ids=lambda c: type(c).__name__)
@pytest.mark.parametrize("pixels", [-1.0, 0, 0.0, math.nan, math.inf, True, "a"])
def test_the_scale_is_positive(coverage, pixels):
    renderer = SmoothRenderer(16, coverage)
    before = {name: value.clone() for name, value in renderer.state_dict().items()}
    with pytest.raises((TypeError, ValueError), match=r"SmoothRenderer: `pixels` must be .*positive"):
        renderer.set_scale(pixels)
    assert all(renderer.state_dict()[name].equal(value) for name, value in before.items())


@pytest.mark.parametrize("steepness", [-1.0, 0.0, math.nan, "a"])
def test_the_depth_steepness_is_named(steepness):
    with pytest.raises((TypeError, ValueError), match=r"SmoothRenderer: `depth_steepness` must be .*positive"):
        SmoothRenderer(16, depth_steepness=steepness)
