import pytest

from algonet.ran.fractal_data import Fractals
from algonet.ran.fractal_evaluate import evaluate_fractals
from algonet.ran.fractal_model import IFSInverse


def test_fractals_show_their_system():
    data = Fractals(3, 24, 3, seed=0)
    item = data[1]
    assert item["a"].shape == (3, 24, 24)
    assert item["crisp"].unique().tolist() == [0, 1]
    smooth = IFSInverse(3, 24, softness=0.5)(item["parameters"][None])[0, 0]
    on, off = smooth[item["crisp"][0] > 0].mean(), smooth[item["crisp"][0] == 0].mean()
    assert on > 2 * off
    perfect = evaluate_fractals(
        None, Fractals(1, 24, 3, seed=0), IFSInverse(3, 24), Fractals(1, 24, 3, seed=0)[0]["parameters"]
    )
    assert perfect["ssim"] == pytest.approx(1.0, abs=1e-5)
