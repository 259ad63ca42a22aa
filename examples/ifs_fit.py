"""The inverse problem: forget the maps of a fractal, keep its picture, and find maps for it again.

python examples/ifs_fit.py [PRESET] [FOLDER]
"""

from __future__ import annotations

import argparse
from pathlib import Path

from algonet.cli.ifs_commands import to_gif
from algonet.core.files import write_bytes
from algonet.ifs import IFS, fit_ifs


def main(name: str, folder: str) -> None:
    source = IFS.preset(name, points=2**17)
    picture = source((128, 128)).detach()
    result = fit_ifs(picture, functions=source.functions, progress=True)
    result.ifs.save(Path(folder) / f"{name}.json")
    write_bytes(Path(folder) / f"{name}.gif", to_gif(result.frames))
    print(f"{name}: structural similarity {result.similarity:.4f}, written to {folder}/")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", nargs="?", default="sierpinski", metavar="PRESET")
    parser.add_argument("folder", nargs="?", default="out", metavar="FOLDER")
    main(**vars(parser.parse_args()))
