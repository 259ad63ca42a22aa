"""Training methods side by side on held-out items: template, direct training, RAN and the supervised bound.

python examples/ran_compare.py [examples/configs/ran_cpu.toml] [--methods direct ran supervised] [--seeds 0 1 2] [--seconds 120]

The configuration says what is reconstructed: shapes (ran_cpu.toml), function systems (ran_ifs.toml) or speech
(ran_speech.toml, with --task vowels, syllables or words; with --espeak also on the voices of espeak-ng, where it is installed).
Settings are chosen with `--split validation`; what is reported comes from the test split.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import torch

from algonet.core.files import write_bytes
from algonet.core.pictures import png_bytes
from algonet.ran import build_data, build_trainer, load_config
from algonet.ran.config import METHODS, TASKS
from algonet.ran.data import CachedItems, Item
from algonet.ran.data.utterances import heard_picture
from algonet.ran.problems import problem_of
from algonet.ran.report import picture_grid
from algonet.speech import Inventory, read_wav

#: Variants of the voices of espeak-ng: men's and women's.
VARIANTS = ("m1", "m3", "m5", "m7", "f1", "f2", "f3", "f4")


class EspeakUtterances(CachedItems):
    """Utterances of the voices of espeak-ng, an independent synthesizer, where it is installed; they are only listened to:
    every utterance of a task by every variant of the Spanish voice, whose five vowels are pure, at three pitches.

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

    def make_one(self, index: int) -> Item:
        text, variant, pitch = self.spoken[index]
        places, count = self.task.parse(self.inventory, text)
        # Its names are ours but for silence; a sustained vowel is a long one, which it writes with a colon
        said = "".join(self.inventory.names[i] for i in places[:count]).replace("_", "") + ":" * (count == 1)
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("config", nargs="?", default="examples/configs/ran_cpu.toml")
    parser.add_argument("--methods", nargs="+", default=["direct", "ran", "supervised"], choices=METHODS)
    parser.add_argument(
        "--seeds", nargs="+", type=int, default=[0], help="of weights and order; the items stay the same"
    )
    parser.add_argument("--seconds", type=float, help="of training for each row, at most (default: the file's steps)")
    parser.add_argument("--steps", type=int, help="of training (default: the file's)")
    parser.add_argument("--split", default="test", choices=("validation", "test"))
    parser.add_argument("--task", choices=TASKS, help="what is said (default: the file's)")
    parser.add_argument("--espeak", action="store_true", help="try speech on the voices of espeak-ng too")
    parser.add_argument("--picture", type=Path, help="where to draw held-out inputs and what the last row made of them")
    options = parser.parse_args()
    config = load_config(options.config)
    config = replace(
        config, data=replace(config.data, task=options.task or config.data.task),
        train=replace(config.train, steps=options.steps or config.train.steps),
    )  # fmt: skip
    problem, held_out = problem_of(config), {options.split: build_data(config, options.split)}
    if options.espeak:
        held_out["espeak-ng"] = EspeakUtterances(config.data.task, config.data.size)
    for where, data in held_out.items():
        print(f"{where}: {len(data)} items; {row('template', problem.evaluate(None, data))}")
    for method in options.methods:
        for seed in options.seeds:
            with tempfile.TemporaryDirectory() as folder:
                trainer = build_trainer(replace(config, method=method, seed=seed), folder)
                started = time.perf_counter()
                trainer.fit(seconds=options.seconds)
                spent = time.perf_counter() - started
            model = trainer.model.eval()
            for where, data in held_out.items():
                name = f"{where}: {method}, seed {seed}, {trainer.step} steps, {spent:.0f} s"
                print(row(name, problem.evaluate(model, data)), flush=True)
    if options.picture:
        a = held_out[options.split].batch(list(range(6)), ("a",))["a"].to(next(model.parameters()).device)
        write_bytes(options.picture, png_bytes(picture_grid(model, a).movedim(0, -1)))


def row(name: str, scores: dict[str, float]) -> str:
    return f"{name}: " + "  ".join(f"{key} {value:.3f}" for key, value in scores.items())


if __name__ == "__main__":
    main()
