"""Which software and which machine a result comes from."""

from __future__ import annotations

import platform
import subprocess
from importlib import metadata
from pathlib import Path

import torch


def versions(device: torch.device) -> dict[str, str]:
    """Versions of all that influences the bits of a result, and the commit if the package is a git checkout."""
    try:
        own = metadata.version("gradsieve")
    except metadata.PackageNotFoundError:  # run from a source tree that is not installed
        own = "source"
    found = {
        "gradsieve": own,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else f"cpu x {torch.get_num_threads()}",
    }
    commit = checkout_commit()
    return {**found, "commit": commit} if commit else found


def checkout_commit() -> str | None:
    """The commit of the checkout that this package runs from, marked as dirty if the files were changed since."""
    here = Path(__file__)
    if git(here.parent, "ls-files", "--error-unmatch", here.name) is None:
        return None  # installed, or not a checkout of ours
    return git(here.parent, "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*")


def git(folder: Path, *arguments: str) -> str | None:
    """The output of a git command in a folder, None if it fails."""
    try:
        answer = subprocess.run(["git", *arguments], cwd=folder, capture_output=True, text=True, timeout=5)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return answer.stdout.strip() if answer.returncode == 0 else None
