"""`algonet demo`: build the gallery with a progress bar and say where it is."""

from __future__ import annotations

import time
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from algonet.cli.common import check_out
from algonet.cli.gallery import PAGE, PAGES
from algonet.cli.gallery import build as build_gallery
from algonet.cli.gallery import write as write_gallery


def run(out: Path, quick: bool, force: bool = False) -> None:
    check_out(out / PAGE, force=force)
    console = Console()
    start = time.perf_counter()
    columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console) as bar:
        task = bar.add_task("starting", total=len(PAGES))
        begun: set[str] = set()

        def progress(section: str, figure: str) -> None:
            begun.add(section)
            bar.update(task, description=f"{section}: {figure}", completed=len(begun) - 0.5)

        sections = build_gallery(quick, progress)
        bar.update(task, description="gallery", completed=len(sections))
    path = write_gallery(sections, out, overwrite=force)
    pictures = sum(len(s.figures) for s in sections)
    console.print(f"{pictures} pictures in {time.perf_counter() - start:.0f} s")
    # Plain print: a path must not be wrapped or coloured where it is read by a script
    print(path.resolve())
