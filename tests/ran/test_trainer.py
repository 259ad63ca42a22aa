from __future__ import annotations

import json
import random

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from algonet.ran import LossWeights, NonFiniteLossError, RANTrainer, build_trainer, checkpoints
from algonet.ran.config import from_dict
from algonet.ran.model import Direct
from algonet.ran.schedules import learning_rate, order, softness_at
from ran.toys import Discs, finished, run_toy, settings, toy


def trainer(folder, model=None, data=None, **changes) -> RANTrainer:
    return RANTrainer(model or toy(), data or Discs(), settings(**changes), folder, progress=False)


def same(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def test_sections_move_their_own_parameters_in_the_printed_order(tmp_path):
    model = toy()
    run = trainer(tmp_path, model)
    seen = []

    def look(before):
        now = {name: [p.detach().clone() for p in part.parameters()] for name, part in model.components().items()}
        moved = {
            name for name in now if not all(torch.equal(a, b) for a, b in zip(before[name], now[name], strict=True))
        }
        return now, moved

    now, _ = look({name: list(part.parameters()) for name, part in model.components().items()})
    descend = run._descend

    def watched(chunks, section, index, precomputed):
        nonlocal now
        now, moved = look(now)
        if seen:
            seen[-1] = (*seen[-1], moved)
        seen.append((section, index))
        return descend(chunks, section, index, precomputed)

    run._descend = watched
    run.fit(steps=1)
    seen[-1] = (*seen[-1], look(now)[1])
    both = {"reconstructor", "a2b"}
    expected = [("discriminator", i, {"discriminator"}) for i in (1, 2, 3, 4, 5)]
    expected += [("b2a", i, {"b2a"}) for i in (2, 3, 4, 5)]
    # The second loss does not see a2b, the fifth not the reconstructor: an Adam without gradients stands still
    moved = {1: both, 2: {"reconstructor"}, 3: both, 4: both, 5: {"a2b"}}
    expected += [("a2b", i, moved[i]) for i in (1, 2, 3, 4, 5)]
    assert seen == expected
    assert all(p.requires_grad for p in model.parameters())


def test_one_adam_per_component(tmp_path):
    run = trainer(tmp_path)
    assert set(run.optimisers) == {"reconstructor", "a2b", "b2a", "discriminator"}
    assert all(type(o) is torch.optim.Adam for o in run.optimisers.values())


def test_training_finds_the_discs(tmp_path):
    """Together, which takes a fifth of the time; the discs are found from the pictures alone."""
    model = toy(separately=False, weights=LossWeights(l1=10.0))
    options = {"steps": 150, "batch": 12, "learning_rate": 3e-3, "softness": (2.0, 1.0)}
    run = trainer(tmp_path, model, checkpoint_every=1000, log_every=10, wait=30, **options)
    data = torch.stack([Discs()[i]["a"] for i in range(24)])
    true = 1 - data[:, 2:] / 0.8

    def wrong():
        with torch.no_grad():
            return float((model.invert(model.reconstruct(data), data) - true).abs().mean())

    before = wrong()
    run.fit()
    assert wrong() < 0.8 * before


def test_the_reconstructor_waits(tmp_path):
    model = toy()
    before = [p.detach().clone() for p in model.reconstructor.parameters()]
    other = model.a2b.weight.detach().clone()
    trainer(tmp_path, model, wait=3).fit(steps=3)
    assert all(torch.equal(a, b) for a, b in zip(before, model.reconstructor.parameters(), strict=True))
    assert not torch.equal(other, model.a2b.weight)


class Noisy(Discs):
    """Discs under noise of the global generators of Python, NumPy and torch."""

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        noise = torch.rand(()) + random.random() + np.random.rand()
        return {"a": super().__getitem__(index)["a"] + 0.1 * noise}


def test_resuming_is_the_same_run_bit_for_bit(tmp_path):
    def run(folder, seed=0):
        # Randomness drawn elsewhere meanwhile must not matter
        torch.seed(), random.seed(), np.random.seed()
        return RANTrainer(toy(seed), Noisy(), settings(steps=7), tmp_path / folder, progress=False)

    whole = run("whole")
    whole.fit()
    run("cut").fit(steps=4)
    second = run("cut", seed=3)
    second.fit(resume=True)
    assert second.step == 7
    assert same(whole.model.state_dict(), second.model.state_dict())
    a = checkpoints.load_checkpoint(tmp_path / "whole/checkpoints/step-00000007")
    b = checkpoints.load_checkpoint(tmp_path / "cut/checkpoints/step-00000007")
    torch.testing.assert_close(a.training, b.training, rtol=0, atol=0, equal_nan=True)
    assert whole.history[4:] == second.history


def test_last_checkpoints_are_kept_and_leftovers_removed(tmp_path):
    left = tmp_path / "checkpoints" / f"{checkpoints.HIDDEN}123"
    left.mkdir(parents=True)
    (left / "model.safetensors").write_bytes(b"half")
    trainer(tmp_path, steps=6, checkpoint_every=1, keep=2).fit()
    assert sorted(p.name for p in (tmp_path / "checkpoints").iterdir()) == ["step-00000005", "step-00000006"]
    assert {p.name for p in (tmp_path / "checkpoints/step-00000006").iterdir()} == {
        "model.safetensors",
        "training.safetensors",
        "state.json",
    }


def test_a_run_is_not_overwritten(tmp_path):
    trainer(tmp_path).fit(steps=2)
    with pytest.raises(ValueError, match="already holds a run; resume it"):
        trainer(tmp_path, tensorboard=True).fit(steps=2)
    assert not (tmp_path / "tensorboard").exists()


def test_a_loss_that_is_not_finite_stops_the_run(tmp_path):
    poison = 5
    data = Discs(poison=poison)
    steps = list(order(len(data), 4, 0, 0, 6))
    guilty = next(i for i, batch in enumerate(steps) if poison in batch)
    run = trainer(tmp_path, data=data, checkpoint_every=1, keep=9)
    with pytest.raises(NonFiniteLossError, match=rf"is nan at step {guilty}; the batch is in"):
        run.fit()
    dumps = list(tmp_path.glob("nonfinite-*.safetensors"))
    assert len(dumps) == 1
    assert torch.isnan(load_file(dumps[0])["a"]).flatten(1).any(1).sum() == 1
    assert json.loads(dumps[0].with_suffix(".json").read_text())["losses"]["discriminator/1"] == "nan"
    # Nothing that is not a number was saved
    assert len(checkpoints.list_checkpoints(tmp_path / "checkpoints")) == guilty
    if guilty:
        assert all(torch.isfinite(t).all() for t in checkpoints.newest_checkpoint(tmp_path).model.values())


def test_accumulation_is_a_larger_batch(tmp_path):
    whole = trainer(tmp_path / "a", batch=8)
    parts = trainer(tmp_path / "b", batch=8, accumulate=2)
    for one, other in zip(whole.fit(), parts.fit(), strict=True):
        assert one == pytest.approx(other, rel=2e-3, abs=2e-4)


class Telling(Discs):
    """Discs that would give the answer away."""

    def __getitem__(self, index):
        return {**super().__getitem__(index), "points": torch.zeros(3)}


class Batched(Telling):
    """The same, made batch by batch where they are used."""

    def to(self, device):
        self.device = device
        return self

    def batch(self, indices, names):
        return {name: torch.stack([self[i][name] for i in indices]).to(self.device) for name in names}


@pytest.mark.parametrize("kind", [Telling, Batched])
def test_a_model_is_shown_only_what_it_names(tmp_path, kind):
    run = trainer(tmp_path, data=kind())
    seen = []
    train = run._train
    run._train = lambda batch: (seen.append(set(batch)), train(batch))[1]
    history = run.fit(steps=2)
    assert seen == [{"a"}, {"a"}]
    plain = trainer(tmp_path / "plain").fit(steps=2)
    assert history == plain


def test_other_models_train_too(tmp_path):
    model = toy()
    direct = Direct(model.reconstructor, model.inverse)
    history = trainer(
        tmp_path, direct, data=Discs(4), steps=30, learning_rate=0.01, checkpoint_every=99, softness=(1.0, 1.0)
    ).fit()
    assert history[-1]["reconstructor/1"] < 0.95 * history[0]["reconstructor/1"]


def test_schedules():
    chosen = settings(steps=100, learning_rate=1.0, warmup=10, final_rate=0.1, softness=(2.0, 0.5))
    assert learning_rate(chosen, 0) == pytest.approx(0.1)
    assert learning_rate(chosen, 100) == pytest.approx(0.1)
    assert learning_rate(chosen, 4, wait=5) == 0
    assert learning_rate(chosen, 5, wait=5) > 0
    assert learning_rate(chosen, 10) > learning_rate(chosen, 50) > learning_rate(chosen, 90)
    assert softness_at(chosen, 0) == 2.0
    assert softness_at(chosen, 40) == pytest.approx(1.0)
    assert softness_at(chosen, 90) == 0.5


def test_schedules_reach_the_model(tmp_path):
    run = trainer(tmp_path, softness=(2.0, 0.5), steps=10)
    run.fit(steps=5)
    assert float(run.model.inverse.steepness) == pytest.approx(1 / (2.0 * 0.25 ** (4 / 8)))
    assert run.optimisers["a2b"].param_groups[0]["lr"] == learning_rate(run.settings, 4)


def test_order_is_a_function_of_the_step():
    whole = list(order(10, 4, 0, 0, 10))
    assert sorted(i for batch in whole[:5] for i in batch) == sorted(list(range(10)) * 2)
    assert list(order(10, 4, 0, 6, 10)) == whole[6:]
    halves = [list(order(10, 4, 0, 0, 10, rank, 2)) for rank in (0, 1)]
    assert [a + b for a, b in zip(*halves, strict=True)] == whole
    assert list(order(10, 4, 1, 0, 10)) != whole


def test_batches_that_cannot_be_shared(tmp_path):
    with pytest.raises(ValueError, match="must be a multiple of accumulate x devices x nodes = 3"):
        trainer(tmp_path, batch=4, accumulate=3).fit()


@pytest.mark.slow
def test_two_processes_are_one_with_the_whole_batch(tmp_path):
    torchrun = ("-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2")
    two = finished(run_toy(tmp_path / "two", 4, 8, 1, before=torchrun))
    one = trainer(tmp_path / "one", steps=4, batch=8).fit()
    assert len(one) == len(two) == 4
    for step, (a, b) in enumerate(zip(one, two, strict=True)):
        assert a == pytest.approx(b, rel=1e-3, abs=1e-4), step
    again = finished(run_toy(tmp_path / "two", 5, 8, 1, before=torchrun))
    assert [entry["step"] for entry in again] == [5.0]


def test_bfloat16_trains_close_to_single_precision(tmp_path):
    single = trainer(tmp_path / "single", steps=3).fit()
    mixed = trainer(tmp_path / "mixed", steps=3, precision="bf16-mixed")
    for one, other in zip(single, mixed.fit(), strict=True):
        assert one == pytest.approx(other, rel=0.1, abs=0.05)
    assert all(p.dtype == torch.float32 for p in mixed.model.parameters())
    a = torch.stack([Discs()[i]["a"] for i in range(2)])
    with torch.autocast("cpu", torch.bfloat16):
        # The reconstruction and its inverse stay in single precision
        assert mixed.model.paths(a).b2.dtype == torch.float32


def test_a_fixed_order_of_sums_is_asked_for_and_given_back(tmp_path):
    seen = []
    run = trainer(tmp_path, deterministic=True)
    run.fit(steps=1, on_step=lambda *_: seen.append(torch.are_deterministic_algorithms_enabled()))
    assert seen == [True]
    assert not torch.are_deterministic_algorithms_enabled()
    assert not torch.backends.cudnn.deterministic


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_on_a_gpu_a_resumed_run_is_the_same_bit_for_bit(tmp_path):
    table = {
        "data": {"size": 16, "train": 8}, "model": {"level": 1, "width": 16, "base": 8},
        "train": {"steps": 4, "batch": 4, "wait": 1, "deterministic": True, "tensorboard": False, "checkpoint_every": 2},
    }  # fmt: skip
    config = from_dict(table)
    whole = build_trainer(config, tmp_path / "whole", progress=False)
    whole.fit()
    build_trainer(config, tmp_path / "cut", progress=False).fit(steps=2)
    again = build_trainer(config, tmp_path / "cut", progress=False)
    again.fit(resume=True)
    assert same(whole.model.state_dict(), again.model.state_dict())
