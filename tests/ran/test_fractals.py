"""Function systems: their data, their parametrisation, their inverse, and a RAN that learns them."""

import math

import pytest
import torch

from algonet.ifs import IFS, ssim
from algonet.ran import build_data, build_model, build_trainer
from algonet.ran.config import from_dict
from algonet.ran.data import generator_of
from algonet.ran.problems import problem_of
from algonet.ran.problems.fractal import Fractals, IFSInverse, maps_about, owners, random_system, system_of

TINY = {
    "kind": "ifs",
    "data": {"size": 16, "train": 6, "test": 2},
    "model": {"width": 16, "base": 4, "translator_base": 4},
    "loss": {"separately": False},
    "train": {"steps": 4, "batch": 2, "wait": 2, "accelerator": "cpu"},
}


class Knowing(torch.nn.Module):
    """Answers every picture with one system."""

    def __init__(self, system):
        super().__init__()
        self.system = torch.nn.Parameter(system)

    def reconstruct(self, a):
        return self.system.expand(len(a), -1, -1)


def test_maps_leave_their_fixed_points_where_they_are():
    fixed, linear = torch.randn(5, 2), torch.randn(5, 2, 2)
    x = torch.randn(5, 2)
    rows = maps_about(fixed, linear).unflatten(-1, (2, 3))
    for point, wanted in ((fixed, fixed), (x, fixed + (linear @ (x - fixed)[..., None])[..., 0])):
        moved = point + rows[..., 0] + (rows[..., 1:] @ point[..., None])[..., 0]
        torch.testing.assert_close(moved, wanted)


def test_families_contract_inside_the_picture_with_one_map_per_sector():
    for index in range(20):
        system = random_system(generator_of(0, index), 3)
        assert float(torch.linalg.matrix_norm(system.unflatten(-1, (2, 3))[..., 1:] + torch.eye(2), 2).max()) < 0.6
        assert float(IFS(system, points=512).points().detach().abs().max()) < 1.2
        offset, moved = system.unflatten(-1, (2, 3))[..., 0], system.unflatten(-1, (2, 3))[..., 1:]
        x, y = torch.linalg.solve(-moved, offset).unbind(-1)
        sector = (torch.atan2(y, x) - math.pi / 2) / (2 * math.pi / 3) % 3
        assert torch.equal(sector.round() % 3, torch.arange(3.0))


def test_items_are_functions_of_seed_and_index():
    one, other = Fractals(6, 16, 3, seed=1), Fractals(6, 16, 3, seed=1)
    together = one.batch([4, 0, 4], ("a", "parameters"))
    for place, index in enumerate([4, 0, 4]):
        for name in ("a", "parameters"):
            torch.testing.assert_close(together[name][place], other[index][name], rtol=0, atol=0)
    assert not torch.equal(other[0]["a"], other[1]["a"])
    assert not torch.equal(other[0]["a"], Fractals(6, 16, 3, seed=1, split="validation")[0]["a"])
    assert other[0]["a"].shape == (3, 16, 16)
    assert 0 <= float(other[0]["a"].min()) <= float(other[0]["a"].max()) <= 1
    with pytest.raises(IndexError):
        one[6]


def test_owners_tell_which_map_a_point_came_from():
    # Maps that throw everything to one place: two corners, and far outside
    places = torch.tensor([[0.75, 0.75], [-0.75, -0.75], [9.0, 9.0]])
    systems = maps_about(places, torch.zeros(3, 2, 2))[None]
    choices = torch.arange(3).repeat(1, 2, 20)
    picture = owners(systems, choices, 4)[0]
    assert int(picture[0, 3]) == 0
    assert int(picture[3, 0]) == 1
    assert int((picture >= 0).sum()) == 2
    # Dots of three pixels around the corners' pixels: one column and one row of each fall outside
    thick = owners(systems, choices, 4, dot=3)[0]
    assert torch.equal(thick[:2, 2:], torch.zeros(2, 2, dtype=torch.int64))
    assert torch.equal(thick[2:, :2], torch.ones(2, 2, dtype=torch.int64))
    assert int((thick >= 0).sum()) == 8


def test_pictures_show_their_system():
    data = Fractals(3, 32, 3, seed=0)
    for index in range(3):
        item = data[index]
        smooth = IFSInverse(3, 32, scale=0.5)(item["parameters"][None])[0, 0]
        red, _, blue = item["a"]
        assert smooth[red > blue].mean() > 3 * smooth[red < blue].mean()
        grey = item["a"].mean(0)
        assert abs(float(grey[red > blue].mean() - grey[red < blue].mean())) < 0.3
    problem = problem_of(from_dict(TINY))
    perfect = problem.evaluate(Knowing(data[0]["parameters"]), Fractals(1, 32, 3, seed=0))
    assert perfect["ssim"] == pytest.approx(1.0, abs=1e-5)
    assert problem.evaluate(None, data)["ssim"] < 0.6


def test_the_inverse_is_smooth_and_treats_each_system_alone():
    inverse = IFSInverse(3, 16, points=64)
    systems = torch.stack([random_system(generator_of(0, i), 3) for i in range(2)]).requires_grad_()
    pictures = inverse(systems)
    assert pictures.shape == (2, 1, 16, 16)
    torch.testing.assert_close(inverse(systems[1:]), pictures[1:])
    double = IFSInverse(2, 12, points=8, depth=4).double()
    some = random_system(generator_of(0, 0), 2).double()[None].requires_grad_()
    assert torch.autograd.gradcheck(double, (some,))
    wild = torch.full((1, 3, 6), 1e6, requires_grad=True)
    (slope,) = torch.autograd.grad(inverse(wild).sum(), wild)
    assert torch.isfinite(slope).all()


def test_reconstructions_begin_at_the_template_and_stay_within_reach():
    reconstructor = build_model(from_dict(TINY)).reconstructor
    near = reconstructor(torch.rand(2, 3, 16, 16))
    torch.testing.assert_close(near, reconstructor.start.expand_as(near), atol=0.02, rtol=0)
    moved = reconstructor.systems(torch.ones(1, 3, 6))
    torch.testing.assert_close(moved, maps_about(reconstructor.fixed + 0.5, reconstructor.linear + 0.5)[None])


def test_saved_systems_draw_the_picture_of_the_inverse(tmp_path):
    system = random_system(generator_of(0, 0), 3)
    system_of(system).save(tmp_path / "found.json")
    loaded = IFS.load(tmp_path / "found.json", exposure=0.5)
    drawn = loaded((32, 32)).detach()
    assert float((drawn - IFSInverse(3, 32)(system[None])[0, 0]).abs().max()) < 0.15
    assert float(ssim(drawn, IFSInverse(3, 32)(system[None])[0, 0])) > 0.98


@pytest.mark.slow
def test_a_ran_finds_maps_that_it_was_never_shown(tmp_path):
    # Long enough that the translators have found each other (50 steps) and the reconstructor has left its template
    config = from_dict(
        {
            "kind": "ifs",
            "data": {"size": 24, "train": 200, "test": 32},
            "model": {"width": 64, "base": 12, "translator_base": 12},
            "loss": {"separately": False},
            "train": {"steps": 110, "batch": 8, "wait": 50, "warmup": 10, "softness": [0.8, 0.8], "accelerator": "cpu",
                      "checkpoint_every": 1000, "pictures_every": 1000, "tensorboard": False},
        }
    )  # fmt: skip
    trainer = build_trainer(config, tmp_path, progress=False)
    trainer.fit()
    held_out = build_data(config, "test")
    problem = problem_of(config)
    template, found = (problem.evaluate(model, held_out)["ssim"] for model in (None, trainer.model))
    assert found > template + 0.1
