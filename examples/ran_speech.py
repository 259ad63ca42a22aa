"""Phonemes from sounds without transcripts: template, direct training, RAN and the supervised bound on held-out sounds.

python examples/ran_speech.py [examples/configs/ran_speech.toml] [--task vowels syllables words]
    [--methods direct ran supervised] [--seeds 0 1 2] [--espeak]

Sounds come from voices that the synthesizer of the inverse is not: see `algonet.ran.data.utterances`; with --espeak, models are
also tried on the voices of espeak-ng, where it is installed. Settings are chosen with `--split validation`; what is reported
comes from the test split.
"""

from __future__ import annotations

import argparse
import dataclasses
import tempfile
import time

from algonet.ran import build_data, build_trainer, load_config
from algonet.ran.config import METHODS, TASKS
from algonet.ran.problems import problem_of


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("config", nargs="?", default="examples/configs/ran_speech.toml")
    parser.add_argument("--task", nargs="+", default=["vowels"], choices=TASKS)
    parser.add_argument("--methods", nargs="+", default=["direct", "ran", "supervised"], choices=METHODS)
    parser.add_argument(
        "--seeds", nargs="+", type=int, default=[0], help="of weights and order; the sounds stay the same"
    )
    parser.add_argument("--steps", type=int, help="of training (default: the file's)")
    parser.add_argument("--seconds", type=float, help="of training for each row, at most")
    parser.add_argument("--split", default="test", choices=("validation", "test"))
    parser.add_argument("--espeak", action="store_true", help="try them on the voices of espeak-ng too")
    arguments = parser.parse_args()
    config = load_config(arguments.config)
    if arguments.steps:
        config = dataclasses.replace(config, train=dataclasses.replace(config.train, steps=arguments.steps))
    for task in arguments.task:
        chosen = dataclasses.replace(config, data=dataclasses.replace(config.data, task=task))
        rows(chosen, arguments)


def rows(config, arguments) -> None:
    problem, held_out = problem_of(config), build_data(config, arguments.split)
    others = {"": held_out}
    if arguments.espeak:
        from algonet.ran.data.espeak import EspeakUtterances

        others["espeak-ng "] = EspeakUtterances(config.data.task, config.data.size)
    print(f"{config.data.task}: {len(held_out)} held-out sounds ({arguments.split})")
    show("template", "", {name: problem.evaluate(None, data) for name, data in others.items()}, "", "")
    for method in arguments.methods:
        for seed in arguments.seeds:
            with tempfile.TemporaryDirectory() as folder:
                trainer = build_trainer(dataclasses.replace(config, method=method, seed=seed), folder, progress=False)
                started = time.perf_counter()
                trainer.fit(seconds=arguments.seconds)
                spent = time.perf_counter() - started
            model = trainer.model.eval()
            scores = {name: problem.evaluate(model, data) for name, data in others.items()}
            show(method, seed, scores, trainer.step, round(spent))


def show(method: str, seed: object, scores: dict[str, dict[str, float]], steps: object, seconds: object) -> None:
    said = "  ".join(f"{where}{key} {value:.3f}" for where, row in scores.items() for key, value in row.items())
    print(f"{method:>12} {seed:>5} {said}  steps {steps} seconds {seconds}", flush=True)


if __name__ == "__main__":
    main()
