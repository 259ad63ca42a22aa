"""Speech as an inverse problem: its data, its inverse, its figures, its files, and voices of another synthesizer."""

from __future__ import annotations

import json
import math
import shutil

import pytest
import torch
from examples.ran_compare import EspeakUtterances
from typer.testing import CliRunner

from algonet.cli.ran_commands import app
from algonet.ran import build_data, build_model, build_trainer
from algonet.ran.config import from_dict
from algonet.ran.data.utterances import TASKS, Utterances, heard_picture, speech_picture
from algonet.ran.problems import problem_of
from algonet.ran.problems.speech import SpeechInverse, Transcript, TranscriptRegulariser, edit_distance
from algonet.speech import SmoothSynthesizer, write_wav

TINY = {
    "kind": "speech",
    "data": {"size": 16, "train": 6, "test": 4},
    "model": {"width": 16, "base": 4, "translator_base": 4},
    "loss": {"separately": False},
    "train": {"steps": 2, "batch": 2, "wait": 0, "accelerator": "cpu", "tensorboard": False},
}


def test_tasks_are_what_they_say():
    assert tuple(TASKS) == ("vowels", "syllables", "words")
    assert [task.places for task in TASKS.values()] == [1, 2, 5]
    assert len(TASKS["vowels"].utterances) == 5
    assert len(TASKS["syllables"].utterances) == 30
    assert len(set(TASKS["words"].utterances)) == len(TASKS["words"].utterances) >= 20


@pytest.mark.parametrize("task", TASKS)
def test_items_are_functions_of_seed_and_index(task):
    one, other = Utterances(6, task, 16, seed=1), Utterances(6, task, 16, seed=1)
    together = one.batch([4, 0, 4], ("a", "phonemes", "durations"))
    for place, index in enumerate([4, 0, 4]):
        # Sounds made together are rounded differently: by 4e-7, measured
        torch.testing.assert_close(together["a"][place], other[index]["a"], rtol=0, atol=1e-5)
        assert torch.equal(together["phonemes"][place], other[index]["phonemes"])
    assert not torch.allclose(other[0]["a"], Utterances(6, task, 16, seed=1, split="test")[0]["a"], atol=0.01)
    assert other[0]["a"].shape == (1, 16, TASKS[task].frames)
    assert float(together["a"].min()) >= 0
    # A little may lie above white
    assert float(together["a"].max()) < 1.2
    spoken = "".join(one.inventory.names[i] for i in other[0]["phonemes"]).rstrip("_")
    assert spoken in TASKS[task].utterances


def test_pictures_do_not_depend_on_loudness():
    mel = torch.randn(2, 16, 8)
    torch.testing.assert_close(speech_picture(mel + 3.0), speech_picture(mel))
    assert torch.autograd.gradcheck(speech_picture, (mel.double()[:, :4, :3].clone().requires_grad_(),))


def test_the_inverse_says_what_it_is_told():
    inverse = SpeechInverse(TASKS["syllables"], 24, scale=0.7)
    names = inverse.names
    one_hot = torch.zeros(2, 2, len(names))
    for row, text in enumerate(["sa", "mi"]):
        for place, name in enumerate(text):
            one_hot[row, place, names.index(name)] = 1
    transcript = Transcript(one_hot.requires_grad_(), torch.full((2, 2), 0.15), torch.ones(2))
    pictures = inverse(transcript)
    assert pictures.shape == (2, 1, 24, 40)
    # /s/ is high, /a/ below it
    first, second = pictures[0, 0, :, 8].detach(), pictures[0, 0, :, 28].detach()
    rows = torch.arange(24.0)
    assert float((first * rows).sum() / first.sum()) > float((second * rows).sum() / second.sum()) + 4
    (slope,) = torch.autograd.grad(pictures.sum(), one_hot)
    assert torch.isfinite(slope).all()
    alone = inverse(Transcript(*(t[1:] for t in transcript)))
    torch.testing.assert_close(alone, pictures[1:])


def test_the_regulariser_is_the_formula():
    q = torch.tensor([[[0.5, 0.5, 0.0]], [[1.0, 0.0, 0.0]]])
    transcript = Transcript(q, torch.ones(2, 1), torch.tensor([1.0, math.e]))
    mean = torch.tensor([0.75, 0.25])
    expected = 2 * (math.log(2) / 2) + 3 * (math.log(3) + float((mean * mean.log()).sum())) + 0.5
    assert float(TranscriptRegulariser(2.0, 3.0)(transcript)) == pytest.approx(expected, abs=1e-5)


class Knowing(torch.nn.Module):
    """Answers with what it is given, in the order of asking."""

    def __init__(self, answers, kinds):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(()))
        self.answers, self.kinds = answers, kinds

    def reconstruct(self, a):
        one_hot = torch.nn.functional.one_hot(self.answers, self.kinds).float()
        return Transcript(one_hot, torch.ones(one_hot.shape[:2]), torch.ones(len(one_hot)))


def test_figures():
    config = from_dict({**TINY, "data": {"size": 16, "task": "words", "test": 20}})
    problem, data = problem_of(config), build_data(config, "test")
    true = data.batch(list(range(20)), ("phonemes",))["phonemes"]
    perfect = problem.evaluate(Knowing(true, len(data.inventory)), data)
    assert perfect == {"phonemes": 1.0, "utterances": 1.0, "edits": 1.0}
    wrong = true.clone()
    wrong[:, 0] = (wrong[:, 0] + 1) % len(data.inventory)
    figures = problem.evaluate(Knowing(wrong, len(data.inventory)), data)
    assert figures["phonemes"] == pytest.approx(0.8)
    assert figures["utterances"] == 0
    assert edit_distance([], [1, 2]) == 2
    assert edit_distance([1, 2, 3], [1, 3]) == 1
    assert problem.evaluate(None, data)["phonemes"] < 0.7


@pytest.mark.parametrize("method", ["ran", "direct", "supervised", "weak"])
def test_every_method_has_gradients(method):
    config = from_dict({**TINY, "method": method, "data": {**TINY["data"], "task": "syllables"}})
    trainer_model = build_model(config)
    data = build_data(config, "train")
    names = ("a", "phonemes", "durations")
    batch = data.batch([0, 1], names)
    batch.update({f"labelled.{name}": batch[name] for name in names})
    for section in trainer_model.sections:
        with trainer_model.training_only(section):
            trainer_model(batch, section, trainer_model.numbers(section)[0]).backward()
        moved = [p for name in trainer_model.sections[section] for p in getattr(trainer_model, name).parameters()]
        assert all(torch.isfinite(p.grad).all() for p in moved if p.grad is not None)
        assert any(p.grad is not None and p.grad.abs().sum() > 0 for p in moved)


def test_vowels_are_learned_from_labels(tmp_path):
    table = {
        **TINY, "method": "supervised", "data": {"size": 24, "train": 80, "test": 40, "noise": 0.03},
        "model": {"width": 32, "base": 8}, "train": {**TINY["train"], "steps": 100, "batch": 16, "warmup": 5},
    }  # fmt: skip
    config = from_dict(table)
    trainer = build_trainer(config, tmp_path, progress=False)
    trainer.fit()
    assert problem_of(config).evaluate(trainer.model, build_data(config, "test"))["phonemes"] > 0.5


def test_train_and_reconstruct_from_the_command_line(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    text = (
        'kind = "speech"\n[data]\nsize = 16\ntrain = 4\ntest = 2\n[model]\nwidth = 16\nbase = 4\ntranslator_base = 4\n'
    )
    text += '[loss]\nseparately = false\n[train]\nsteps = 2\nbatch = 2\naccelerator = "cpu"\n'
    text += "tensorboard = false\npictures_every = 2\n"
    (tmp_path / "run.toml").write_text(text)
    runner = CliRunner()
    done = runner.invoke(app, ["train", "run.toml", "--out", "run"], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    assert "phonemes" in done.output
    synthesizer = SmoothSynthesizer()
    write_wav("a.wav", synthesizer(*synthesizer.score("a")).waveform.detach(), 16_000)
    done = runner.invoke(app, ["reconstruct", "run", "a.wav", "--out", "found"], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    (row,) = json.loads((tmp_path / "found/a.json").read_text())
    assert row["phoneme"] in "aeiou"
    assert row["seconds"] > 0
    assert (tmp_path / "found/a.png").exists()


def test_sounds_of_any_rate_begin_where_they_are_heard():
    synthesizer = SmoothSynthesizer(phonemes="a")
    sound = synthesizer(*synthesizer.score("a")).waveform.detach()
    plain = heard_picture(sound, 16_000, 24, 32)
    late = heard_picture(torch.nn.functional.pad(sound, (8000, 0)), 16_000, 24, 32)
    torch.testing.assert_close(late, plain, atol=0.02, rtol=0)
    faster = torch.nn.functional.interpolate(sound[None, None], scale_factor=2.0, mode="linear")[0, 0]
    twice = heard_picture(faster, 32_000, 24, 32)
    assert float((twice - plain).abs().mean()) < 0.03


@pytest.mark.skipif(shutil.which("espeak-ng") is None, reason="espeak-ng is not installed")
def test_voices_of_another_synthesizer():
    data = EspeakUtterances("vowels", 24)
    assert len(data) == 5 * 8 * 3
    a, i = data[0], data[2 * 24]
    assert data.inventory.names[int(i["phonemes"][0])] == "i"
    rows = torch.arange(24.0)
    # The second formant of /i/ is high, that of /a/ is not: more of its picture lies above the middle
    share = [float((item["a"][0, 12:] * rows[12:, None]).sum() / item["a"].sum()) for item in (a, i)]
    assert share[1] != pytest.approx(share[0], rel=0.05)


def test_without_espeak_the_reason_is_said(monkeypatch):
    monkeypatch.setenv("PATH", "")
    with pytest.raises(FileNotFoundError, match="espeak-ng: not installed"):
        EspeakUtterances("vowels", 24)
