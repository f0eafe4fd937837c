"""A folder of class folders with images."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from gradsieve.data.files import files_below
from gradsieve.errors import InputError, MissingExtraError

SUFFIXES = {".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm"}
HIDDEN = (".", "__MACOSX")  # how such names begin
SIDE = 32  # pixels: images are scaled to squares of this size


def find_images(folder: Path) -> list[Path]:
    """The images below a folder, relative to it; what notebooks and file managers hide among them is none."""
    names = (path.relative_to(folder) for path in files_below(folder) if path.suffix.lower() in SUFFIXES)
    found = sorted(name for name in names if not any(part.startswith(HIDDEN) for part in name.parts))
    if not found:
        raise InputError(f"{folder} holds no images ({', '.join(sorted(SUFFIXES))}).")
    return found


def class_images(folder: Path) -> tuple[list[Path], list[str]]:
    """The images in class folders, and the class of each: the name of its folder."""
    found = find_images(folder)
    outside = [path for path in found if len(path.parts) < 2]
    if outside:
        raise InputError(
            f"{folder / outside[0]} lies in no class folder. Give a folder that holds a folder for each class."
        )
    return found, [path.parts[0] for path in found]


def read_images(folder: Path, paths: list[Path], side: int) -> NDArray[np.uint8]:
    """(N, 3, side, side) bytes."""
    try:
        from PIL import Image
    except ImportError as error:
        raise MissingExtraError("Pillow", "data", "Reading images") from error
    pixels = np.empty((len(paths), 3, side, side), dtype=np.uint8)
    for place, path in enumerate(paths):
        try:
            with Image.open(folder / path) as image:
                if image.mode.startswith(("I", "F")):  # Pillow would cut off what lies beyond 255
                    raise ValueError("its pixels have more than 8 bits, so scale them and save it with 8")
                scaled = image.convert("RGB").resize((side, side), Image.Resampling.BILINEAR)
        except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
            raise InputError(f"{folder / path} cannot be read as an image ({error}). Remove or replace it.") from error
        pixels[place] = np.asarray(scaled).transpose(2, 0, 1)
    return pixels
