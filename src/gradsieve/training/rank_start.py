"""Before the first step of a run over several ranks: checks that they match, and shares of a batch."""

from __future__ import annotations

import hashlib
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from gradsieve import ranks
from gradsieve.ranks.batchnorm import batch_norms
from gradsieve.training.run import Run
from gradsieve.training.setting import Setting
from gradsieve.training.state import State
from gradsieve.training.versions import versions


def require_same_run(run: Run, out: Any, bounds: bool) -> None:
    """Refuse ranks that differ in settings, software or code: they would deadlock, or train different networks."""
    if ranks.world_size() == 1:
        return
    ranks.require_alike("settings", {**run.to_json(), "writes a folder": out is not None, "bounds": bounds})
    found = versions(torch.device("cpu"))
    software = {name: found[name] for name in ("gradsieve", "torch")}
    ranks.require_alike("software", {**software, "SHA-256 of the code": source_sha256()})


def source_sha256() -> str:
    """The SHA-256 of the code of the running package, shortened."""
    root = Path(__file__).parents[1]
    digest = hashlib.sha256()
    for path in sorted(root.rglob("*.py")):
        digest.update(path.relative_to(root).as_posix().encode() + path.read_bytes())
    return digest.hexdigest()[:16]


def ranks_of(setting: Setting, state: State) -> dict[str, Any]:
    """How the ranks share the work, for the result."""
    begins = ranks.parts(min(setting.run.batch_size, len(setting.data.train)), ranks.world_size())
    has_norm = any(map(batch_norms, state.networks))
    return {
        "world_size": ranks.world_size(),
        "backend": dict(pair.split(":") for pair in dist.get_backend_config().split(","))[setting.device.type],
        "rows_of_a_batch": [end - start for start, end in pairwise(begins)],
        "batchnorm": setting.run.batchnorm if has_norm else None,
    }


def shares_in_words(setting: Setting, state: State) -> str:
    """`ranks_of` in words."""
    shared = ranks_of(setting, state)
    rows = shared["rows_of_a_batch"]
    norm = f"; BatchNorm {shared['batchnorm']}" if shared["batchnorm"] else ""
    return (
        f"{len(rows)} ranks ({shared['backend']}) take {', '.join(map(str, rows))} of the {sum(rows)} rows of each "
        f"batch; each holds the {len(setting.data.train)} training rows and the whole model{norm}"
    )
