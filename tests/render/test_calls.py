"""Calls that are nearly right: a square size as one number, and mistakes answered in words."""

from __future__ import annotations

import pytest

from algonet.relax import StudentT
from algonet.render import Camera, DirectionalLight, SmoothRenderer, icosphere

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
