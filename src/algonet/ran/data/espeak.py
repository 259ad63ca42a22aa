"""Utterances of the voices of espeak-ng, an independent synthesizer, where it is installed. They are only listened to."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from pathlib import Path

import torch

from algonet.speech import Inventory, read_wav

from . import CachedItems, Item
from .utterances import TASKS, heard_picture

#: Variants of its voices: men's and women's.
VARIANTS = ("m1", "m3", "m5", "m7", "f1", "f2", "f3", "f4")
#: Its names of our phonemes, where they differ.
NAMES = {"_": ""}


class EspeakUtterances(CachedItems):
    """Every utterance of a task by every variant of the Spanish voice, whose five vowels are pure, at three pitches.

    Items are those of `Utterances`, without durations. espeak-ng reads its own phoneme names, so that no spelling is in
    the way."""

    def __init__(self, task: str, bands: int, *, voice: str = "es", pitches: tuple[int, ...] = (30, 50, 70)):
        program = shutil.which("espeak-ng")
        if program is None:
            raise FileNotFoundError("espeak-ng: not installed; apt install espeak-ng, or leave its voices out.")
        self.program, self.task, self.bands, self.voice = program, TASKS[task], bands, voice
        self.inventory = Inventory.of(self.task.phonemes)
        self.spoken = [(t, v, p) for t in self.task.utterances for v in VARIANTS for p in pitches]
        super().__init__(len(self.spoken))

    def make(self, indices: list[int]) -> list[Item]:
        return [self._make(*self.spoken[index]) for index in indices]

    def _make(self, text: str, variant: str, pitch: int) -> Item:
        places, count = self.task.parse(self.inventory, text)
        names = [NAMES.get(self.inventory.names[i], self.inventory.names[i]) for i in places[:count]]
        # A sustained vowel is a long one, which espeak-ng writes with a colon
        said = "".join(names) + (":" if len(names) == 1 else "")
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "said.wav"
            options = f"-v {self.voice}+{variant} -p {pitch} -s 120 -w".split()
            command = [self.program, *options, str(path), f"[['{said}]]"]
            done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
            if done.returncode:
                raise OSError(f"espeak-ng: {' '.join(done.stderr.split())[:200]}")
            sound, rate = read_wav(path)
        picture = heard_picture(sound, rate, self.bands, self.task.frames)[None]
        return {"a": picture.to(self.device), "phonemes": torch.tensor(places, device=self.device)}
