"""What is heard: formants where they were asked for, one phoneme in the hard limit, levels, files, the command."""

from __future__ import annotations

import json
import math
import wave

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from algonet.relax import Anneal
from algonet.speech import (
    PHONEMES,
    Inventory,
    SmoothSynthesizer,
    Voice,
    mel_spectrogram,
    read_text,
    read_wav,
    resonance,
    wav_bytes,
    write_wav,
)
from algonet.speech.functional import _frames, mel_table


@pytest.fixture(scope="module")
def synthesizer():
    return SmoothSynthesizer(phonemes="a e i o u m s t _", harmonics=60)


def test_the_inventory_is_large_enough():
    assert sum(p.vowel for p in PHONEMES) >= 5
    assert len(PHONEMES) >= 12
    assert len({p.name for p in PHONEMES}) == len(PHONEMES)


@pytest.mark.parametrize("vowel", ["a", "e", "i", "o", "u"])
def test_vowels_have_their_formants(synthesizer, vowel):
    """Of a low voice, whose harmonics sample the envelope closely, the strongest harmonics near F1 and F2 are at them."""
    phonemes, durations, pitch, loudness = synthesizer.score(vowel, pitch=60.0)
    synthesizer = SmoothSynthesizer(phonemes="a e i o u m s t _", harmonics=120)
    sound = synthesizer(phonemes, durations * 3, pitch, loudness).waveform[3200:9600]
    power = torch.fft.rfft(sound * torch.hann_window(len(sound))).abs()
    frequency = torch.linspace(0, 8000, len(power))
    row = Inventory.of(vowel)
    for formant in row.formants[0, :2].tolist():
        near = (frequency - formant).abs() < 150
        expected = resonance(frequency[near][None] / 1000, row.formants / 1000, row.bandwidths / 1000)[0]
        found, wanted = frequency[near][power[near].argmax()], frequency[near][expected.argmax()]
        assert abs(float(found - wanted)) <= 60.0


def test_a_resonator_is_the_formula():
    f, c, b = torch.tensor([0.0, 0.5, 0.7]), 0.7, 0.03
    s = 1j * f.double()
    expected = ((c**2 + b**2) / (s**2 + 2 * b * s + c**2 + b**2)).abs()
    # The narrowest bandwidth is added in squares
    half = math.sqrt(b**2 - 0.005**2)
    found = resonance(f.double(), torch.tensor([c], dtype=torch.float64), torch.tensor([2 * half], dtype=torch.float64))
    torch.testing.assert_close(found, expected)


def test_the_hard_limit_is_the_one_phoneme(synthesizer):
    score = synthesizer.score("m a s i")
    whole = synthesizer(*score, length=8000)
    sharp = torch.log(score.phonemes + 1e-4)
    errors = [
        float((synthesizer((k * sharp).softmax(-1), *score[1:], length=8000).waveform - whole.waveform).abs().max())
        for k in (0.5, 1.0, 4.0)
    ]
    assert errors[0] > errors[1] > errors[2]
    assert errors[2] < 1e-5


def test_a_soft_choice_mixes_sounds_and_not_formants(synthesizer):
    """Half /a/, half /u/ has the peaks of both; the mean of their formants would be near /o/."""
    a, u = (synthesizer.score(name) for name in "au")
    options = {"frames": 20}
    mixed = synthesizer.envelope((a.phonemes + u.phonemes) / 2, *a[1:], **options)[:, 12].exp()
    alone = [synthesizer.envelope(*score, **options)[:, 12].exp() for score in (a, u)]
    amplitude = (alone[0].sqrt() + alone[1].sqrt()) / 2
    # Amplitudes add at each frequency; over a band powers are averaged: measured deviation 5 %
    torch.testing.assert_close(mixed.sqrt(), amplitude, rtol=0.1, atol=2e-3)


def test_formants_glide_between_phonemes(synthesizer):
    """In the middle of a border the second formant lies between, instead of two peaks fading over each other."""
    from algonet.speech import vocal_controls

    score = synthesizer.score("a i")
    times = torch.linspace(0.1, 0.5, 81)
    controls = vocal_controls(*score, times, inventory=synthesizer.inventory)
    a, i = (synthesizer.names.index(name) for name in "ai")
    for phoneme in (a, i):
        second = controls.formants[:, phoneme, 1]
        weight = controls.voice[:, phoneme]
        loud = weight > 0.01
        expected = 1.09 + (2.29 - 1.09) * torch.sigmoid(150 * (times - 0.28))
        torch.testing.assert_close(second[loud], expected[loud], atol=0.02, rtol=0)


def test_the_envelope_has_the_levels_of_the_sound(synthesizer):
    score = synthesizer.score("a i s u t o", pitch=110.0)
    speech = synthesizer(*score)
    envelope = synthesizer.envelope(*score, frames=speech.mel.shape[-1])
    audible = envelope > -6
    difference = (speech.mel - envelope)[audible]
    # Nats: harmonics and noise make the sound's spectrogram rough around the envelope
    assert abs(float(difference.mean())) < 0.35
    assert float(difference.abs().mean()) < 0.8


def test_spectrograms_are_torchs(synthesizer):
    x = torch.randn(3, 3000, generator=torch.Generator().manual_seed(0))
    for hop in (160, 100, 441):
        window = torch.hann_window(512)
        spectrum = torch.stft(x, 512, hop, window=window, pad_mode="constant", return_complex=True)
        table = mel_table(40, 16_000, torch.linspace(0, 8000, 257)).float()
        torch.testing.assert_close(mel_spectrogram(x, hop=hop), torch.log(1e-5 + table @ spectrum.abs().square()))
        assert torch.equal(_frames(x, hop), x.unfold(-1, 512, hop))


def test_voices_differ(synthesizer):
    score = synthesizer.score("a")
    plain = synthesizer.envelope(*score, frames=20)
    high = synthesizer.envelope(*score, frames=20, voice=Voice(formant_scale=1.2))
    rows = torch.arange(40.0)
    centre = [float((m[:, 10].exp().sqrt() * rows).sum() / m[:, 10].exp().sqrt().sum()) for m in (plain, high)]
    assert centre[1] > centre[0] + 1
    each = synthesizer.envelope(
        *(t.expand(2, *t.shape) for t in score), frames=20, voice=Voice(formant_scale=torch.tensor([1.0, 1.2]))
    )
    torch.testing.assert_close(each, torch.stack([plain, high]))
    breathy = synthesizer.envelope(*score, frames=20, voice=Voice(breath=1.0))
    assert float((breathy - plain)[20:30, 10].min()) > 0.05
    steep = synthesizer.envelope(*score, frames=20, voice=Voice(tilt=1.0))
    assert float((steep - plain)[25, 10]) < -1
    assert float((synthesizer.envelope(*score, frames=20, voice=Voice(bandwidth_scale=3.0)) - plain)[:, 10].max()) < 3


def test_gradients_find_a_pitch_and_a_formant(synthesizer):
    learner = SmoothSynthesizer(phonemes="a").learnable()
    score = learner.score("a")
    target = SmoothSynthesizer(phonemes="a")
    target.formants[0, 0] = 650.0
    wanted = target.envelope(*score, frames=20).detach()
    optimizer = torch.optim.Adam([learner.formants], lr=10.0)
    for _ in range(40):
        loss = (learner.envelope(*score, frames=20) - wanted).abs().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert abs(float(learner.formants[0, 0].detach()) - 650) < 15


def test_state_and_softness(synthesizer):
    other = SmoothSynthesizer(phonemes="a e i o u m s t _", harmonics=60)
    state = {name: tensor * 1.1 for name, tensor in synthesizer.state_dict().items()}
    other.load_state_dict(state)
    torch.testing.assert_close(other.formants, synthesizer.formants * 1.1)
    Anneal(100.0, 400.0, steps=1).attach(other).step()
    assert float(other.relax.steepness) == pytest.approx(400.0)


def test_wrong_input(synthesizer):
    score = synthesizer.score("a i")
    with pytest.raises(ValueError, match=r"`phonemes` must be a floating tensor \(\*batch, P, 9\), got"):
        synthesizer(score.phonemes[:, :3], *score[1:])
    with pytest.raises(ValueError, match=r"`pitch` must be a tensor \(2,\), got \(1,\); one number per phoneme"):
        synthesizer(score.phonemes, score.durations, score.pitch[:1], score.loudness)
    with pytest.raises(ValueError, match="no phoneme begins with 'x' in 'max'"):
        synthesizer.score("max")
    with pytest.raises(ValueError, match="nothing to say"):
        synthesizer.score("  ")
    with pytest.raises(ValueError, match=r"wanted phonemes among a e i .*, got 'q'"):
        SmoothSynthesizer(phonemes="a q")
    with pytest.raises(ValueError, match="`sample_rate` must be an integer from 1000"):
        SmoothSynthesizer(sample_rate=10)
    with pytest.raises(ValueError, match=r"an utterance of .* seconds; give `length`"):
        synthesizer(score.phonemes, score.durations * 1e9, *score[2:])
    with pytest.raises(ValueError, match="`length` must be an integer from 0 on, got -1"):
        synthesizer(*score, length=-1)
    with pytest.raises(ValueError, match=r"`length` must be an integer from 0 on, got 100\.5"):
        synthesizer(*score, length=100.5)
    with pytest.raises(ValueError, match=r"`frames` must be an integer from 0 on, got 2\.5"):
        synthesizer.envelope(*score, frames=2.5)
    with pytest.raises(TypeError, match=r"`voice` must be a Voice such as .*, got 'deep'"):
        synthesizer(*score, voice="deep")
    with pytest.raises(TypeError, match=r"`durations` must be a tensor \(2,\), got float; one number per phoneme"):
        synthesizer(score.phonemes, 0.1, *score[2:])
    with pytest.raises(TypeError, match="one string such as 'a i u'"):
        synthesizer.score(["a", "i"])
    with pytest.raises(ValueError, match=r"`rate` must be positive and finite, got 0\.0"):
        synthesizer.score("a", rate=0.0)


def test_a_voice_that_nobody_has_is_refused():
    with pytest.raises(ValueError, match="Voice: `formant_scale` must be positive and finite, got -1"):
        Voice(formant_scale=-1.0)
    with pytest.raises(ValueError, match=r"Voice: `breath` must be 0 or more, got -0\.5"):
        Voice(breath=-0.5)
    with pytest.raises(ValueError, match="Voice: `tilt` must be finite, got -inf"):
        Voice(tilt=-math.inf)


@pytest.mark.parametrize("name", ["tilt", "breath"])
def test_no_voice_is_beyond_bounds(synthesizer, name):
    """A source that rises with the frequency ends somewhere: -10 is no louder than -1e30, and all slopes are finite."""
    score = [t.requires_grad_() for t in synthesizer.score("a s")]
    for value in (-10.0, -50.0, -1000.0, -1e30, 1e30) if name == "tilt" else (1e3, 1e30):
        value = torch.tensor(value, requires_grad=True)
        wave = synthesizer(*score, length=2000, voice=Voice(**{name: value})).waveform
        slopes = torch.autograd.grad(wave.square().sum(), [*score, value])
        assert all(torch.isfinite(t).all() for t in slopes)
        # Measured: 25 and 126
        assert float(wave.detach().abs().max()) < 1000


def test_what_is_no_sound_is_not_written(tmp_path):
    """NaN as 16 bits is some number or other: a file that can be played, of nothing."""
    with pytest.raises(ValueError, match="holds NaN or infinity"):
        write_wav(tmp_path / "none.wav", torch.full((10,), torch.nan), 16_000)
    with pytest.raises(TypeError, match=r"must be a tensor \(N,\).*write_wav\(path, waveform, rate\)"):
        write_wav(torch.zeros(10), str(tmp_path / "none.wav"), 16_000)
    assert not list(tmp_path.iterdir())


def test_wav_files(tmp_path):
    sound = torch.sin(torch.arange(1000) / 10) * 0.5
    path = write_wav(tmp_path / "tone.wav", sound, 16_000)
    again, rate = read_wav(path)
    assert rate == 16_000
    torch.testing.assert_close(again, sound, atol=1e-4, rtol=0)
    write_wav(tmp_path / "loud.wav", sound * 100, 16_000)
    torch.testing.assert_close(read_wav(tmp_path / "loud.wav")[0], sound / sound.abs().max(), atol=1e-4, rtol=0)
    for width, dtype in ((1, np.uint8), (2, "<i2"), (4, "<i4")):
        with wave.open(str(tmp_path / "other.wav"), "wb") as file:
            file.setnchannels(2)
            file.setsampwidth(width)
            file.setframerate(8000)
            scaled = sound.double().numpy() * (2.0 ** (8 * width - 1) - 1) + (128 if width == 1 else 0)
            file.writeframes(np.repeat(scaled.round().astype(dtype), 2).tobytes())
        again, rate = read_wav(tmp_path / "other.wav")
        assert rate == 8000
        torch.testing.assert_close(again, sound, atol=2e-2 if width == 1 else 1e-4, rtol=0)


@pytest.mark.parametrize("content", [b"", b"RIFF", b"hello" * 30, None])
def test_broken_wav_files_are_named(tmp_path, content):
    whole = wav_bytes(torch.zeros(100), 16_000)
    (tmp_path / "bad.wav").write_bytes(whole[:50] if content is None else content)
    if content is None:  # the header alone: the samples that are there are read
        assert len(read_wav(tmp_path / "bad.wav")[0]) == 3
        return
    with pytest.raises(ValueError, match=r"bad\.wav: not readable as a PCM WAV file"):
        read_wav(tmp_path / "bad.wav")
    with pytest.raises(FileNotFoundError, match=r"none\.wav: there is no such file"):
        read_wav(tmp_path / "none.wav")


#: Common words and how they sound, which the rules were made for.
SOUNDS = """
shop=S o p; fish=f i S; house=h a w s; name=n e j m; night=n a j t; make=m e j k; like=l a j k; home=h o m
tree=t r i; book=b u k; moon=m u n; happy=h a p i; my=m a j; fly=f l a j; day=d e j; rain=r e j n; boat=b o t
boy=b o j; cow=k a w; town=t a w n; show=S o; snow=s n o; light=l a j t; knee=n i; write=r a j t; phone=f o n
queen=k w i n; six=s i k s; box=b o k s; city=s i t i; cent=s E n t; page=p e j d z; bridge=b r i d z
nation=n e j S @ n; station=s t e j S @ n; little=l i t @ l; table=t e j b @ l; apple=a p @ l; bird=b @ r d
her=h @ r; turn=t @ r n; car=k a r; door=d o r; horse=h o r s; think=s i n k; this=d i s; that=d a t; then=d E n
bath=b a s; teach=t i t S; church=t S @ r t S; watch=w o t S; wash=w o S; want=w o n t; head=h E d; bread=b r E d
read=r i d; sea=s i; new=n u; blue=b l u; fruit=f r u t; use=u z; cute=k u t; sing=s i n; ring=r i n; king=k i n
song=s o n; walk=w o k; talk=t o k; ball=b o l; call=k o l; half=h a f; dogs=d o g z; cats=k a t s
stopped=s t o p t; wanted=w o n t @ d; played=p l e j d; running=r @ n i n; cold=k o l d; find=f a j n d
child=t S a j l d; fire=f a j r; care=k E r; here=h i r; more=m o r; pure=p u r; sun=s @ n; run=r @ n
sound=s a w n d; round=r a w n d; mouse=m a w s; famous=f e j m @ s; bed=b E d; red=r E d; me=m i; we=w i; she=S i
he=h i; be=b i; paper=p e j p @ r; river=r i v @ r; letter=l E t @ r; summer=s @ m @ r; winter=w i n t @ r
music=m u z i k; network=n E t w @ r k; smooth=s m u s; machine=m @ S i n; computer=k o m p u t @ r; loss=l o s
gradient=g r e j d i E n t; train=t r e j n; layer=l e j @ r; yellow=j E l o; green=g r i n; white=w a j t
black=b l a k; orange=o r E n d z; jump=d z @ m p; zoo=z u; visit=v i z i t; thumb=s @ m; autumn=o t @ m
climb=k l a j m; sign=s a j n
"""


def test_words_are_read():
    wanted = dict(item.strip().split("=") for line in SOUNDS.split("\n") for item in line.split(";") if item.strip())
    wrong = [word for word, sound in wanted.items() if read_text(word)[0].phonemes != sound]
    assert len(wanted) > 120
    assert set(wrong) <= {"gradient", "orange"}


def test_rules_name_phonemes_that_there_are():
    from algonet.speech.reading import _english

    words, rules = _english()
    names = {phoneme.name for phoneme in PHONEMES}
    assert len(words) > 100
    assert len(rules) > 150
    assert {name for sound in [*words.values(), *(s for _, s in rules)] for name in sound.split()} <= names


def test_text_of_any_kind():
    synthesizer = SmoothSynthesizer()
    words = read_text("Don't say /h a l o/ 42 times!")
    assert [word.text for word in words] == ["Don't", "say", "/h a l o/", "4", "2", "times", "!"]
    assert [word.phonemes for word in words][2:] == ["h a l o", "f o r", "t u", "t a j m z", "_"]
    score = synthesizer.read("shop /a i/")
    assert [synthesizer.names[int(row.argmax())] for row in score.phonemes] == ["S", "o", "p", "a", "i"]
    for text, message in (
        (" ", "nothing to say"),
        ("...", "nothing to say"),
        ("über", "no rule reads"),
        ("a = b", "cannot read '='"),
    ):
        with pytest.raises(ValueError, match=message):
            read_text(text)
    with pytest.raises(TypeError, match="text as one string"):
        read_text(3)
    with pytest.raises(ValueError, match="no phoneme begins with 'q'"):
        synthesizer.read("/q/")


def test_say(tmp_path, monkeypatch):
    from algonet.cli.speech_commands import app

    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(app, ["say", "/a i u/", "--out", "vowels.wav", "--pitch", "110"], catch_exceptions=False)
    assert "read as /a i u/" in done.output
    assert done.exit_code == 0, done.output
    assert "vowels.wav" in done.output
    assert "vowels.png" in done.output
    sound, rate = read_wav("vowels.wav")
    assert rate == 16_000
    assert 0.7 < len(sound) / rate < 1.2
    assert float(sound.abs().max()) > 0.1
    assert (tmp_path / "vowels.png").read_bytes()[:4] == b"\x89PNG"
    listed = CliRunner().invoke(app, ["phonemes", "--json"], catch_exceptions=False)
    assert {row["name"] for row in json.loads(listed.output)} == {p.name for p in PHONEMES}
    again = ["say", "a", "--out", "vowels.wav"]
    with pytest.raises(FileExistsError, match=r"vowels\.wav: exists; choose another name, or --force"):
        CliRunner().invoke(app, again, catch_exceptions=False)
    assert CliRunner().invoke(app, [*again, "--force"], catch_exceptions=False).exit_code == 0
    wrong = CliRunner().invoke(app, ["say", "a", "--pitch", "-5"])
    assert wrong.exit_code != 0


def test_spectrograms_name_frequencies(monkeypatch):
    """The axis says kHz: a tone lies at the tick of its frequency."""
    pytest.importorskip("matplotlib").use("Agg")
    from algonet.apps import drawing
    from algonet.speech import Speech, mel_spectrogram

    monkeypatch.setattr(drawing, "png", lambda figure: figure)
    rate = 16_000
    tone = torch.sin(2 * torch.pi * 2000 * torch.arange(rate) / rate)
    mel = mel_spectrogram(tone, sample_rate=rate)
    axis = drawing.spectrogram_png(Speech(tone, mel), ["a"], torch.tensor([0.9])).axes[1]
    (tick,) = [y for y, text in zip(axis.get_yticks(), axis.get_yticklabels(), strict=True) if text.get_text() == "2"]
    assert abs(mel.mean(-1).argmax() + 0.5 - tick) <= 0.6
