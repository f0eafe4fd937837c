"""Rows as small PNG pictures within the page, as data URIs."""

from __future__ import annotations

import base64
import struct
import zlib
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

SIDE = 64  # pixels at most, to keep the report small
POINTED = 96  # about as many pixels for pictures with points, which need more detail
DOT = 2  # pixels to each side of a point's centre
COLOURS = {"orange": (240, 130, 0), "blue": (40, 130, 255)}


def pointed(image: NDArray[Any], groups: Mapping[str, NDArray[Any]]) -> NDArray[np.uint8]:
    """An image (C, H, W) in colour, of about POINTED pixels a side, with the points (P, 2), x and y, of each colour.

    Points outside are drawn at the edge.
    """
    pixels = in_channels(image)
    factor = max(1, round(POINTED / max(pixels.shape[:2])))
    pixels = np.broadcast_to(pixels, (*pixels.shape[:2], 3)).repeat(factor, 0).repeat(factor, 1)
    height, width = pixels.shape[:2]
    for name, points in groups.items():
        places = np.nan_to_num((np.asarray(points, dtype=np.float64) + 0.5) * factor)  # pixel centres: whole numbers
        for x, y in np.clip(places, 0, (width - 1, height - 1)).astype(int):
            pixels[max(0, y - DOT) : y + DOT + 1, max(0, x - DOT) : x + DOT + 1] = COLOURS[name]
    return pixels.transpose(2, 0, 1)


def in_channels(image: NDArray[Any]) -> NDArray[np.uint8]:
    """An image (C, H, W) as (H, W, 3) or (H, W, 1) bytes: unless there are three channels, only the first is shown."""
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
    """Pixels as bytes: numbers within [0, 1] are brightness, other numbers are scaled from their minimum to maximum."""
    if image.dtype == np.uint8:
        return image
    values = np.nan_to_num(image.astype(np.float64))
    low, high = float(values.min()), float(values.max())
    if low < 0 or high > 1:
        values = (values - low) / (high - low or 1.0)
    return (values * 255).round().astype(np.uint8)


def png(pixels: NDArray[np.uint8]) -> bytes:
    """(H, W, 1) or (H, W, 3) bytes as the content of a PNG file: header, compressed lines, end."""
    height, width, channels = pixels.shape
    lines = b"".join(b"\0" + line.tobytes() for line in pixels)  # 0: no filter
    header = struct.pack(">IIBBBBB", width, height, 8, 2 if channels == 3 else 0, 0, 0, 0)
    chunks = (b"IHDR", header), (b"IDAT", zlib.compress(lines, 9)), (b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunk(kind, content) for kind, content in chunks)


def chunk(kind: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))


def data_uri(image: NDArray[Any], side: int = SIDE) -> str:
    """An image as a data URI of a PNG picture."""
    return "data:image/png;base64," + base64.b64encode(png(thumbnail(image, side))).decode()
