"""`algonet speech say` and `algonet speech phonemes`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from typer import Argument, Option

from algonet.cli.common import (
    STANDARD_OUTPUT,
    Force,
    Json,
    check_out,
    deliver,
    examples,
    out_option,
    print_result,
)

app = typer.Typer(
    no_args_is_help=True,
    help="Speak: the smooth synthesizer, from text to sound.",
    epilog=examples('algonet speech say "hello world" --out hello.wav', "algonet speech phonemes"),
)


@app.command(
    "say",
    epilog=examples(
        'algonet speech say "hello world" --out hello.wav',
        'algonet speech say "my name is /o t o/" --pitch 210 --formant-scale 1.15 --out name.wav',
    ),
)
def speak(
    text: Annotated[str, Argument(help="English words; phonemes between slashes, as in /h a l o/.")],
    out: Annotated[Path, out_option("The WAV file; its spectrogram goes beside it.")] = Path("speech.wav"),
    pitch: Annotated[float, Option(min=20.0, max=2000.0, help="Pitch of the voice, in Hz.")] = 120.0,
    rate: Annotated[float, Option(min=0.1, max=10.0, help="Speed of speech; 1 is usual.")] = 1.0,
    formant_scale: Annotated[
        float, Option(min=0.3, max=3.0, help="Shorter vocal tracts have higher formants: 1.15 is a woman's.")
    ] = 1.0,
    breath: Annotated[float, Option(min=0.0, max=10.0, help="Noise in the voice.")] = 0.0,
    picture: Annotated[bool, Option(help="Draw the spectrogram.")] = True,
    force: Force = False,
) -> None:
    """Say English text: a WAV file, a picture of its spectrogram, and how each word was read."""
    import torch

    from algonet.speech import SmoothSynthesizer, Voice, read_text, wav_bytes

    drawing = out.with_suffix(".png") if picture and out != STANDARD_OUTPUT else None
    check_out(*filter(None, (out, drawing)), force=force, ending=".wav")
    synthesizer = SmoothSynthesizer(harmonics=max(1, int(8000 / pitch)))
    words = read_text(text)
    score = synthesizer.read(text, pitch=pitch, rate=rate)
    with torch.no_grad():
        speech = synthesizer(*score, voice=Voice(formant_scale=formant_scale, breath=breath))
    seconds = len(speech.waveform) / synthesizer.sample_rate
    files = {out: wav_bytes(speech.waveform, synthesizer.sample_rate)}
    lines = ["read as " + " ".join(f"/{word.phonemes}/" for word in words), f"{out}: {seconds:.1f} s of sound"]
    if drawing:
        import matplotlib

        from algonet.apps.drawing import spectrogram_png

        matplotlib.use("Agg")
        names = [synthesizer.names[int(row.argmax())] for row in score.phonemes]
        files[drawing] = spectrogram_png(speech, names, score.durations)
        lines.append(f"{drawing}: its spectrogram")
    deliver(files, *lines, force=force)


@app.command(epilog=examples("algonet speech phonemes", "algonet speech phonemes --json"))
def phonemes(as_json: Json = False) -> None:
    """List the phonemes, with their formants."""
    import dataclasses

    from algonet.speech import PHONEMES

    lines = (
        f"{p.name:>3}  {' '.join(f'{f:5.0f}' for f in p.formants)} Hz  {'vowel' if p.vowel else ''}".rstrip()
        for p in PHONEMES
    )
    print_result([dataclasses.asdict(phoneme) for phoneme in PHONEMES], as_json, lines)
