"""The inverse problem: forget the maps of a fractal, keep its picture, and find maps for it again.

python examples/ifs_fit.py [PRESET] [FOLDER]
"""

from __future__ import annotations

import sys
from pathlib import Path

from algonet.cli.ifs_commands import to_gif
from algonet.core.files import write_bytes
from algonet.ifs import IFS, fit_ifs


def main(name: str = "sierpinski", folder: str = "out") -> None:
    source = IFS.preset(name, points=2**17)
    picture = source((128, 128)).detach()
    result = fit_ifs(picture, functions=source.functions, progress=True)
    result.ifs.save(Path(folder) / f"{name}.json")
    write_bytes(Path(folder) / f"{name}.gif", to_gif(result.frames))
    print(f"{name}: structural similarity {result.similarity:.4f}, written to {folder}/")


if __name__ == "__main__":
    main(*sys.argv[1:3])
