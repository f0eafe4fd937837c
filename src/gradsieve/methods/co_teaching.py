"""Co-teaching (Han et al. 2018): two SPL networks that exchange the rows they keep."""

from dataclasses import dataclass
from typing import Literal

from gradsieve.method import Exchange
from gradsieve.methods.spl import SPL


@dataclass(frozen=True)
class CoTeaching(Exchange, SPL):
    """Two networks, each trained on the small-loss rows of the other."""

    level: Literal["batch"] = "batch"
