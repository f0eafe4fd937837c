"""Rows as small pictures, as PNG inside the page: nothing is loaded from anywhere."""

from __future__ import annotations

import base64
import struct
import zlib
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

SIDE = 64  # pixels at most: a report is to be mailed
POINTED = 96  # about as many, where there are points to be seen
DOT = 2  # pixels around the middle of a point
COLOURS = {"orange": (240, 130, 0), "blue": (40, 130, 255)}


def pointed(image: NDArray[Any], groups: Mapping[str, NDArray[Any]]) -> NDArray[np.uint8]:
    """An image (C, H, W) in colour, of about POINTED pixels a side, with the points (P, 2), x and y, of each colour.

    Points outside stand at the edge.
    """
    pixels = in_channels(image)
    factor = max(1, round(POINTED / max(pixels.shape[:2])))
    pixels = np.broadcast_to(pixels, (*pixels.shape[:2], 3)).repeat(factor, 0).repeat(factor, 1)
    height, width = pixels.shape[:2]
    for name, points in groups.items():
        places = np.nan_to_num((np.asarray(points, dtype=np.float64) + 0.5) * factor)  # whole numbers are centres
        for x, y in np.clip(places, 0, (width - 1, height - 1)).astype(int):
            pixels[max(0, y - DOT) : y + DOT + 1, max(0, x - DOT) : x + DOT + 1] = COLOURS[name]
    return pixels.transpose(2, 0, 1)


def in_channels(image: NDArray[Any]) -> NDArray[np.uint8]:
    """An image (C, H, W) as (H, W, 3) or (H, W, 1) bytes: other channels than three are shown as the first."""
    pixels = as_bytes(image).transpose(1, 2, 0)
    return pixels if pixels.shape[2] == 3 else pixels[:, :, :1]


def thumbnail(image: NDArray[Any], side: int = SIDE) -> NDArray[np.uint8]:
    """An image (C, H, W), bytes or numbers, as (H, W, 3) or (H, W, 1) bytes of at most ``side`` pixels a side."""
    pixels = in_channels(image)
    factor = -(-max(pixels.shape[:2]) // side)
    height, width = (max(1, side // factor) for side in pixels.shape[:2])
    cut = pixels[: height * factor, : width * factor].astype(np.float64)
    blocks = cut.reshape(height, cut.shape[0] // height, width, cut.shape[1] // width, -1)
    return blocks.mean(axis=(1, 3)).round().astype(np.uint8)


def as_bytes(image: NDArray[Any]) -> NDArray[np.uint8]:
    """Bytes stay; numbers within [0, 1] are brightness; others are stretched from their least to their most."""
    if image.dtype == np.uint8:
        return image
    values = np.nan_to_num(image.astype(np.float64))
    low, high = float(values.min()), float(values.max())
    if low < 0 or high > 1:
        values = (values - low) / (high - low or 1.0)
    return (values * 255).round().astype(np.uint8)


def png(pixels: NDArray[np.uint8]) -> bytes:
    """(H, W, 1) or (H, W, 3) bytes as a PNG file: header, compressed lines, end."""
    height, width, channels = pixels.shape
    lines = b"".join(b"\0" + line.tobytes() for line in pixels)  # each line as it is, unfiltered
    header = struct.pack(">IIBBBBB", width, height, 8, 2 if channels == 3 else 0, 0, 0, 0)
    chunks = (b"IHDR", header), (b"IDAT", zlib.compress(lines, 9)), (b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunk(kind, content) for kind, content in chunks)


def chunk(kind: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))


def data_uri(image: NDArray[Any], side: int = SIDE) -> str:
    """The address of a picture that carries the picture itself."""
    return "data:image/png;base64," + base64.b64encode(png(thumbnail(image, side))).decode()
