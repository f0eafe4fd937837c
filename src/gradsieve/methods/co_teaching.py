"""Co-teaching (Han et al. 2018): two SPL networks that exchange the rows they keep.

1. Each network computes each row's loss and drops the rows for which its own loss is largest.
2. Update each network on the mean loss of the rows that the other one kept.
"""

from dataclasses import dataclass
from typing import Literal

from gradsieve.method import Exchange
from gradsieve.methods.spl import SPL


@dataclass(frozen=True)
class CoTeaching(Exchange, SPL):
    """Two networks, each trained on the rows whose loss is small in the other."""

    level: Literal["batch"] = "batch"
