"""`algonet speech say` and `algonet speech phonemes`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from algonet.cli.common import STANDARD_OUTPUT, Force, Json, check_ending, check_out, deliver, examples, print_json, say

app = typer.Typer(
    no_args_is_help=True,
    help="Speak: the smooth synthesizer, from phonemes to sound.",
    epilog=examples('algonet speech say "a i u" --out vowels.wav', "algonet speech phonemes"),
)


@app.command(
    "say",
    epilog=examples(
        'algonet speech say "a i u" --out vowels.wav',
        'algonet speech say "h a l o _ m a m a" --pitch 210 --formant-scale 1.15 --out hello.wav',
    ),
)
def speak(
    text: Annotated[str, typer.Argument(help="Phonemes, with or without spaces between them; `_` is silence.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="The WAV file; its spectrogram goes beside it.")] = Path(
        "speech.wav"
    ),
    pitch: Annotated[float, typer.Option(min=20.0, max=2000.0, help="Of the voice, in Hz.")] = 120.0,
    rate: Annotated[float, typer.Option(min=0.1, max=10.0, help="How fast, 1 being usual.")] = 1.0,
    formant_scale: Annotated[
        float, typer.Option(min=0.3, max=3.0, help="Shorter vocal tracts have higher formants: 1.15 is a woman's.")
    ] = 1.0,
    breath: Annotated[float, typer.Option(min=0.0, max=10.0, help="Noise in the voice.")] = 0.0,
    picture: Annotated[bool, typer.Option(help="Draw the spectrogram.")] = True,
    force: Force = False,
) -> None:
    """Say phonemes: a WAV file and a picture of its spectrogram."""
    import torch

    from algonet.speech import SmoothSynthesizer, Voice, wav_bytes

    drawing = out.with_suffix(".png") if picture and out != STANDARD_OUTPUT else None
    check_ending(out, ".wav")
    check_out(*filter(None, (out, drawing)), force=force)
    synthesizer = SmoothSynthesizer(harmonics=max(1, int(8000 / pitch)))
    score = synthesizer.score(text, pitch=pitch, rate=rate)
    with torch.no_grad():
        speech = synthesizer(*score, voice=Voice(formant_scale=formant_scale, breath=breath))
    seconds = len(speech.waveform) / synthesizer.sample_rate
    files = {out: wav_bytes(speech.waveform, synthesizer.sample_rate)}
    if drawing:
        names = [synthesizer.names[int(row.argmax())] for row in score.phonemes]
        files[drawing] = spectrogram_png(speech, names, score.durations)
    deliver(files, force=force)
    say(out, f"{out}: {seconds:.1f} s of sound")
    if drawing:
        typer.echo(f"{drawing}: its spectrogram")


@app.command(epilog=examples("algonet speech phonemes", "algonet speech phonemes --json"))
def phonemes(as_json: Json = False) -> None:
    """List the phonemes, with their formants."""
    import dataclasses

    from algonet.speech import PHONEMES

    if as_json:
        print_json([dataclasses.asdict(phoneme) for phoneme in PHONEMES])
        return
    for phoneme in PHONEMES:
        formants = " ".join(f"{f:5.0f}" for f in phoneme.formants)
        typer.echo(f"{phoneme.name:>3}  {formants} Hz  {'vowel' if phoneme.vowel else ''}".rstrip())


def spectrogram_png(speech: Any, names: list[str], durations: Any) -> bytes:
    """The waveform above its log-mel spectrogram, with the phonemes where they are said."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    from algonet.cli.gallery import png
    from algonet.speech.functional import LEAD

    frames = speech.mel.shape[-1]
    figure, (top, below) = plt.subplots(2, 1, figsize=(9, 4.6), height_ratios=[1, 3], sharex=True)
    seconds = (frames - 1) / 100
    wave, mel = (t.detach().cpu().numpy() for t in (speech.waveform, speech.mel))
    top.plot([i * seconds / len(wave) for i in range(len(wave))], wave, lw=0.5)
    top.set_yticks([])
    below.imshow(mel, origin="lower", aspect="auto", extent=(0, seconds, 0, len(mel)), vmin=-11.5, vmax=4, cmap="magma")
    below.set_xlabel("seconds")
    below.set_ylabel("mel band")
    begins = LEAD
    for name, duration in zip(names, durations.tolist(), strict=True):
        top.text(begins + duration / 2, top.get_ylim()[1] * 1.05, name, ha="center", fontsize=12)
        below.axvline(begins, color="white", lw=0.6, alpha=0.6)
        begins += duration
    figure.tight_layout()
    return png(figure)
