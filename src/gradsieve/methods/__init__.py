"""Methods: one short file each, and the one table of them.

To add a method, write its file and add a row here; the command line, the common tests and the docs pick it up.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gradsieve.registry import Registry

if TYPE_CHECKING:  # the table is listed without torch
    from gradsieve.method import Method

METHODS: Registry[type[Method]] = Registry(
    "method",
    {
        "standard": "gradsieve.methods.standard:Standard",
        "normclip": "gradsieve.methods.normclip:NormClip",
        "huber": "gradsieve.methods.huber:Huber",
        "ignormclip": "gradsieve.methods.ignormclip:IgNormClip",
        "bootstrap": "gradsieve.methods.bootstrap:Bootstrap",
        "decouple": "gradsieve.methods.decouple:Decouple",
        "min-sgd": "gradsieve.methods.min_sgd:MinSGD",
        "spl": "gradsieve.methods.spl:SPL",
        "co-teaching": "gradsieve.methods.co_teaching:CoTeaching",
        "prl-l": "gradsieve.methods.prl_l:PRLL",
        "prl-g": "gradsieve.methods.prl_g:PRLG",
        "co-prl-l": "gradsieve.methods.co_prl_l:CoPRLL",
        "co-prl-g": "gradsieve.methods.co_prl_g:CoPRLG",
        "coordinate-median": "gradsieve.methods.coordinate_median:CoordinateMedian",
        "sever": "gradsieve.methods.sever:Sever",
    },
    needs=("drops_rows", "networks", "paper_passes", "schedule", "tasks"),
    way="A method is a class that inherits gradsieve.method.Method.",
)

DEFAULT_METHOD = "prl-l"

__all__ = ["DEFAULT_METHOD", "METHODS"]
