"""Pictures as bytes, as PNG and as GIF; and reading them: any format and depth, as 8-bit grey or colour, with errors of one
line that name the file."""

from __future__ import annotations

import io
import os
import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING

from algonet.core.extras import require
from algonet.core.files import read_file

if TYPE_CHECKING:
    import numpy as np
    from PIL.Image import Image
    from torch import Tensor

#: No picture larger than this is opened: it would not fit into memory together with its gradient.
MOST_PIXELS = 2**26
#: No file larger than this is read: what `MOST_PIXELS` take without compression.
MOST_BYTES = 2**28


def to_bytes(pixels: Tensor, colored: bool = False) -> np.ndarray:
    """Values in [0, 1] (H, W) or (H, W, 3) as bytes; if `colored`, in three channels anyway."""
    found = (pixels.detach().clamp(0, 1) * 255).round().byte().cpu().numpy()
    return found[..., None].repeat(3, -1) if colored and found.ndim == 2 else found


def png_bytes(pixels: Tensor | np.ndarray) -> bytes:
    """A picture (H, W) or (H, W, 3), of bytes or with values in [0, 1], as the content of a PNG file."""
    require("PIL")
    import numpy as np
    from PIL import Image

    buffer = io.BytesIO()
    Image.fromarray(pixels if isinstance(pixels, np.ndarray) else to_bytes(pixels)).save(buffer, "PNG")
    return buffer.getvalue()


def gif_bytes(frames: Sequence[Image | np.ndarray], milliseconds: int = 80, rest: int | None = None) -> bytes:
    """Frames of bytes, or images, as the content of an animated GIF without end; the last one stays for `rest` if given."""
    require("PIL")
    import numpy as np
    from PIL import Image

    first, *others = [Image.fromarray(f) if isinstance(f, np.ndarray) else f for f in frames]
    durations = [milliseconds] * len(others) + [milliseconds if rest is None else rest]
    buffer = io.BytesIO()
    first.save(buffer, "GIF", save_all=True, append_images=others, duration=durations, loop=0)
    return buffer.getvalue()


def open_picture(path: str | os.PathLike[str]) -> Image:
    """The picture in a file, whole and in memory, in mode L, LA, RGB or RGBA (with alpha only where the file has it).

    Turned as its EXIF says. 16-bit pictures are scaled to 8 bits, not clipped; of several frames the first counts. Raises
    ValueError
    ("PATH: not readable as a picture: REASON") for a file that is broken, no picture or has too many pixels, and an
    OSError where there is no file, or one that is no ordinary file or too large.
    """
    require("PIL")
    from PIL import Image, ImageOps

    content = io.BytesIO(read_file(path, MOST_BYTES))
    try:
        with warnings.catch_warnings():
            # Pillow warns of damaged metadata and of sizes that are checked here
            warnings.simplefilter("ignore")
            with Image.open(content) as file:
                if not 0 < file.width * file.height <= MOST_PIXELS:
                    raise ValueError(f"{file.width} x {file.height} pixels; at most {MOST_PIXELS} in all can be used")
                ImageOps.exif_transpose(file, in_place=True)
                return _in_8_bits(file)
    except Image.UnidentifiedImageError:
        raise ValueError(f"{path}: not readable as a picture: not a format that is known.") from None
    except Exception as error:  # Pillow raises whatever the reader of that format raised
        reason = " ".join(str(error).split()) or type(error).__name__
        raise ValueError(f"{path}: not readable as a picture: {reason}") from error


def _in_8_bits(image: Image) -> Image:
    """In mode L, LA, RGB or RGBA."""
    require("PIL")
    import numpy as np
    from PIL import Image

    if image.mode.startswith("I") or image.mode == "F":
        # In place: a picture of MOST_PIXELS takes a quarter of a gigabyte each time
        values = np.array(image, dtype=np.float32)
        np.nan_to_num(values, copy=False)
        # Mode I holds 8, 16 or 32 bits without saying so: the least of them that the brightest pixel needs
        brightest = float(values.max())
        sixteen = image.mode.startswith("I;16") or 255 < brightest <= 65535
        white = 65535.0 if sixteen else max(255.0, brightest)
        np.clip(values, 0, white, out=values)
        values *= 255 / white
        return Image.fromarray(np.rint(values, out=values).astype(np.uint8))
    if image.mode in ("RGBA", "PA", "RGBa") or "transparency" in image.info:
        return image.convert("RGBA")
    if image.mode in ("LA", "La"):
        return image.convert("LA")
    return image.convert("L" if image.mode in ("1", "L") else "RGB")
