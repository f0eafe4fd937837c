"""A folder of class folders with images."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from gradsieve.data.files import files_below
from gradsieve.errors import InputError, MissingExtraError

SUFFIXES = {".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm"}
HIDDEN = (".", "__MACOSX")  # files and folders whose names begin so are no data
SIDE = 32  # pixels: images are scaled to squares of this size


def find_images(folder: Path) -> list[Path]:
    """The images below a folder, relative to it."""
    return images_and_others(folder)[0]


def images_and_others(folder: Path) -> tuple[list[Path], list[Path]]:
    """The images and the other files below a folder, relative to it, except hidden ones."""
    files = sorted(path.relative_to(folder) for path in files_below(folder, HIDDEN))
    found = [name for name in files if name.suffix.lower() in SUFFIXES]
    if not found:
        raise InputError(f"{folder} holds no images ({', '.join(sorted(SUFFIXES))}).")
    return found, [name for name in files if name.suffix.lower() not in SUFFIXES]


def class_images(folder: Path, note: Callable[[str], None] = lambda text: None) -> tuple[list[Path], list[str]]:
    """The images in class folders, and the class of each: the name of its folder."""
    found, others = images_and_others(folder)
    outside = [path for path in found if len(path.parts) < 2]
    if outside:
        raise InputError(
            f"{folder / outside[0]} lies in no class folder. Give a folder that holds a folder for each class."
        )
    unread = [path.as_posix() for path in others if len(path.parts) > 1]
    if unread:
        kinds = ", ".join(sorted(SUFFIXES))
        note(f"files that are no images ({kinds}) are left out: {len(unread)}, the first of them {unread[0]}")
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
                if image.mode.startswith(("I", "F")):  # Pillow would clip values above 255
                    raise ValueError("its pixels have more than 8 bits, so scale them and save it with 8")
                scaled = image.convert("RGB").resize((side, side), Image.Resampling.BILINEAR)
        except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
            raise InputError(f"{folder / path} cannot be read as an image ({error}). Remove or replace it.") from error
        pixels[place] = np.asarray(scaled).transpose(2, 0, 1)
    return pixels
