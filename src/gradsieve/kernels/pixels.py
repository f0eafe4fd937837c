"""Loads that several kernels share."""

# Triton comes with the CUDA builds of PyTorch only, and pyright does not see what jit makes of a function.
# pyright: reportMissingImports=false, reportIndexIssue=false, reportCallIssue=false
# pyright: reportArgumentType=false, reportOperatorIssue=false
import triton
import triton.language as tl


@triton.jit
def load_pixels(
    image, line, column, channel, wanted, HEIGHT: tl.constexpr, WIDTH: tl.constexpr, CHANNELS: tl.constexpr
):
    """The channels of the wanted pixels of one image, zero outside of it: (pixels, channels)."""
    inside = wanted & (line >= 0) & (line < HEIGHT) & (column >= 0) & (column < WIDTH)
    places = (line * WIDTH + column)[:, None] * CHANNELS + channel[None, :]
    return tl.load(image + places, mask=inside[:, None], other=0.0)
