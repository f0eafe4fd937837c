"""Rows as small pictures, as PNG inside the page: nothing is loaded from anywhere."""

from __future__ import annotations

import base64
import struct
import zlib
from typing import Any

import numpy as np
from numpy.typing import NDArray

SIDE = 64  # pixels at most: a report is to be mailed


def thumbnail(image: NDArray[Any]) -> NDArray[np.uint8]:
    """An image (C, H, W), bytes or numbers, as (H, W, 3) or (H, W, 1) bytes of at most SIDE pixels a side."""
    pixels = as_bytes(image).transpose(1, 2, 0)
    pixels = pixels if pixels.shape[2] == 3 else pixels[:, :, :1]  # other channels than three are shown as the first
    factor = -(-max(pixels.shape[:2]) // SIDE)
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


def data_uri(image: NDArray[Any]) -> str:
    """The address of a picture that carries the picture itself."""
    return "data:image/png;base64," + base64.b64encode(png(thumbnail(image))).decode()
