"""One fractal becomes another: the maps of a fern turn into those of a maple leaf, and every step is a picture.

python examples/ifs_morph.py [OUT.gif]
"""

from __future__ import annotations

import argparse

import torch

from algonet.cli.ifs_commands import to_gif
from algonet.core.files import write_bytes
from algonet.ifs import IFS

FRAMES, SIDE = 24, 160


def main(path: str) -> None:
    fern, maple = IFS.preset("fern", points=20_000), IFS.preset("maple", points=20_000)
    frames = []
    with torch.no_grad():
        for k in range(FRAMES + 1):
            t = (1 - torch.cos(torch.tensor(torch.pi * k / FRAMES))) / 2
            maps = torch.lerp(fern.maps, maple.maps, t)
            # the frame follows the attractor: no extent is given, so each system finds its own
            picture = IFS(maps, weights=torch.lerp(fern.odds, maple.odds, t), points=20_000)((SIDE, SIDE))
            frames.append((picture * 255).byte())
    write_bytes(path, to_gif(frames + frames[::-1], side=2 * SIDE))
    print(f"wrote {path}: {len(frames)} pictures between a fern and a maple leaf")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("path", nargs="?", default="morph.gif", metavar="OUT.gif")
    main(**vars(parser.parse_args()))
