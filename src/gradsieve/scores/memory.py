"""Checks that there is enough memory, before it is taken.

A gradient for each row takes rows times parameters: with 512 rows, a network of 10 million
parameters needs 20 GB. An error at the start of a run is better than running out of memory later.
"""

from __future__ import annotations

import os
from pathlib import Path

import torch
from torch import nn

from gradsieve.errors import InputError


def row_gradient_bytes(network: nn.Module, rows: int) -> int:
    """Bytes of the gradients of ``rows`` rows for the largest parameter, in single precision at least.

    Only one parameter's are held at a time, because ``RowPass.by_parameter`` builds them one by one.
    """
    sizes = [p.numel() * max(4, p.element_size()) for p in network.parameters() if p.requires_grad]
    return rows * max(sizes, default=0)


def available_bytes(device: torch.device) -> int:
    """Memory that can still be taken on ``device``."""
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        return free + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    meminfo = Path("/proc/meminfo")
    if meminfo.exists():
        fields = dict(line.split(":", 1) for line in meminfo.read_text().splitlines())
        if "MemAvailable" in fields:
            return int(fields["MemAvailable"].split()[0]) * 1024
    # Elsewhere the system may not report free memory (macOS): then all of its memory is the bound.
    pages = "SC_AVPHYS_PAGES" if "SC_AVPHYS_PAGES" in os.sysconf_names else "SC_PHYS_PAGES"
    return os.sysconf(pages) * os.sysconf("SC_PAGE_SIZE")


def require_memory(what: str, bytes_needed: int, device: torch.device | str) -> None:
    """Raise if ``device`` cannot hold the ``bytes_needed`` for ``what``."""
    device = torch.device(device)
    available = available_bytes(device)
    if bytes_needed > available:
        raise InputError(
            f"{what} needs {in_words(bytes_needed)} on {device}, which has {in_words(available)} left. "
            "Take a smaller batch, or prl-l, which scores rows without their parameter gradients."
        )


def in_words(amount: int) -> str:
    """A number of bytes for people: 3.2 GB."""
    value, units = float(amount), ["bytes", "kB", "MB", "GB", "TB"]
    while value >= 1000 and len(units) > 1:
        value, units = value / 1000, units[1:]
    return f"{value:.0f} {units[0]}" if units[0] == "bytes" else f"{value:.1f} {units[0]}"
