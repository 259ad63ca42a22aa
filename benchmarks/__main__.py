"""Run every benchmark this machine can, and report what became worse than the committed figures.

    python -m benchmarks [--quick] [--keep] [--page] [NAME ...]

Fresh figures go to build/benchmarks/NAME.json. With --keep they also become the committed ones, benchmarks/results/NAME.json
(NAME_gpu.json where there is a CUDA device), and the page of tables and the README's figures are made again; --page does
only that.
"""

from __future__ import annotations

import argparse
import json
import os
import pkgutil
import subprocess
import sys
import time
from pathlib import Path

import torch

from algonet.core.files import write_text
from benchmarks import page

HERE = Path(__file__).parent
FRESH = HERE.parent / "build" / "benchmarks"
#: A ratio may fall, or a time rise, by this factor before it is called a regression: timings are noisy.
SLACK = 1.5
#: A time or memory may rise by this much, whatever the factor: what a clock or an allocator cannot tell apart.
FLOOR = {"ms": 0.1, "MiB": 4.0}


def names() -> list[str]:
    """The modules that measure something."""
    shared = ("harness", "page", "__main__")
    return sorted(m.name for m in pkgutil.iter_modules([str(HERE)]) if m.name not in shared)


def results_name(name: str, cuda: bool) -> str:
    """The file, without suffix, that a module's figures belong to on this machine.

    >>> results_name("sorting", True), results_name("render_gpu", True), results_name("render", True)
    ('sorting_gpu', 'render_gpu', 'render')
    """
    return f"{name}_gpu" if cuda and not name.endswith("_gpu") and f"{name}_gpu" not in names() else name


def regressions(old: dict, new: dict) -> list[str]:
    """What of ours became worse, comparing ratios always, times and memory only on the same machine."""
    before = {_key(row): row["value"] for row in old["rows"]}
    same_machine = all(old["machine"].get(key) == new["machine"].get(key) for key in ("cpu", "gpu"))
    found = []
    for row in new["rows"]:
        was, now, unit = before.get(_key(row)), row["value"], row["unit"]
        more_is_better = unit in ("ratio", "score")
        if was is None or not _ours(row) or min(was, now) <= 0 or not (more_is_better or same_machine):
            continue
        worse = was / now if more_is_better else now / was
        if worse > SLACK and abs(now - was) > FLOOR.get(unit, 0.0):
            found.append(f"{_label(row)}: {was:.4g} -> {now:.4g} {unit}")
    return found


def _key(row: dict) -> tuple[str, ...]:
    return row["name"], row.get("column", ""), row.get("by", "algonet"), row["unit"]


def _ours(row: dict) -> bool:
    return row.get("by", "algonet") == "algonet" and not row.get("note") and row["unit"] != "difference"


def _label(row: dict) -> str:
    return ", ".join(part for part in (row["name"], row.get("column", "")) if part)


def ratios(old: dict | None, new: dict) -> list[str]:
    """Each ratio, beside the committed one."""
    before = {_key(row): row["value"] for row in old["rows"]} if old else {}
    lines = []
    for row in new["rows"]:
        if row["unit"] == "ratio":
            was = before.get(_key(row))
            lines.append(f"  {_label(row):68} {row['value']:9.4g}" + (f"   ({was:.4g})" if was is not None else ""))
    return lines


def measure(name: str, quick: bool, output: Path) -> str | None:
    """Run one module; None, or why there are no figures."""
    command = [sys.executable, "-m", f"benchmarks.{name}", "--json", str(output), *(["--quick"] if quick else [])]
    # What has a sibling for the GPU is about the CPU, and must not be timed by CUDA events
    hidden = {"CUDA_VISIBLE_DEVICES": ""} if f"{name}_gpu" in names() else {}
    done = subprocess.run(command, cwd=HERE.parent, env={**os.environ, **hidden})
    return f"the benchmark failed (exit code {done.returncode})" if done.returncode or not output.exists() else None


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--quick", action="store_true", help="smaller workloads, for a look")
    parser.add_argument("--keep", action="store_true", help="record the figures as the new ones to compare with")
    parser.add_argument(
        "--page", action="store_true", help="only make docs/benchmarks.md and the README's figures again"
    )
    options = parser.parse_args()
    unknown = set(options.names) - set(names())
    if unknown:
        parser.error(f"no benchmark named {', '.join(sorted(unknown))}; there are {', '.join(names())}")
    if options.keep and options.quick:
        parser.error("--keep records what others compare with: run it without --quick")
    if options.page:
        _write_pages()
        return 0
    print(busy())
    worse, summary = _run(options.names or names(), options.quick, options.keep)
    if options.keep:
        _write_pages()
    verdict = [f"worse than committed, by more than {SLACK} times:", *worse] if worse else ["no regressions"]
    print("\n".join(["", "ratios (committed)", *summary, "", *verdict, busy()]))
    return 1 if worse else 0


def busy() -> str:
    """A warning where others are at work: times are then theirs as much as ours."""
    load, cores = os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0, os.cpu_count() or 1
    return f"(this machine is busy: load {load:.1f} on {cores} cores; trust ratios only)" if load > 1.5 * cores else ""


def _write_pages() -> None:
    write_text(page.PAGE, page.markdown())
    write_text(page.README, page.readme(page.README.read_text(encoding="utf-8")))


def _run(chosen: list[str], quick: bool, keep: bool) -> tuple[list[str], list[str]]:
    """(what became worse, the ratios) of the benchmarks, which are run one after the other."""
    FRESH.mkdir(parents=True, exist_ok=True)
    worse: list[str] = []
    summary: list[str] = []
    for name in chosen:
        print(f"\n== {name}", flush=True)
        started, output = time.perf_counter(), FRESH / f"{name}.json"
        output.unlink(missing_ok=True)
        failure = measure(name, quick, output)
        if failure:
            worse.append(f"{name}: {failure}")
            continue
        print(f"== {name} took {time.perf_counter() - started:.0f} s", flush=True)
        fresh, kept = (
            json.loads(output.read_text()),
            page.RESULTS / f"{results_name(name, torch.cuda.is_available())}.json",
        )
        old = json.loads(kept.read_text()) if kept.exists() else None
        worse += [f"{name}: {line}" for line in regressions(old, fresh)] if old else []
        found = ratios(old, fresh)
        summary += [f" {name}", *found] if found else []
        if keep and fresh["rows"]:
            write_text(kept, json.dumps(fresh, indent=1) + "\n")
    return worse, summary


if __name__ == "__main__":
    sys.exit(main())
