"""The rows of an epoch, for methods that choose them once at its start. Rows left out are recorded as dropped."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache

import torch
from torch import Tensor, nn

from gradsieve import ranks
from gradsieve.method import Method
from gradsieve.training.ledger import Ledger
from gradsieve.training.tally import Tally


def choose_rows(
    method: Method,
    networks: Sequence[nn.Module],
    outputs: Callable[[nn.Module, slice], Tensor],  # a network's outputs for a part of the rows
    rows: Tensor,  # (n,) their indices in the training set
    targets: Tensor,  # (n, ...)
    drop_rate: float,
    ledger: Ledger,
    tally: Tally,
) -> Tensor | None:
    """Those of ``rows`` that the method chooses; None if it leaves the choice to its steps.

    The others are recorded as dropped, with their scores: else a row's mean score would miss its worst epochs.
    """
    own = ranks.own_part(len(rows))  # each rank scores its part of the rows
    outputs_of = cache(lambda network: outputs(network, own))
    rows, targets = rows[own], targets[own]
    chosen = method.epoch_rows(outputs_of, networks, targets, drop_rate)
    if chosen is None:
        return None
    absent = torch.ones_like(rows, dtype=torch.bool).index_fill(0, chosen, False)
    scores = method.scores(outputs_of(networks[0]), targets)
    columns = [rows[absent]] if scores is None else [rows[absent], scores.values[absent]]
    left_out, *values = ranks.gather_rows(columns).values
    ledger.record_absent(left_out, values[0] if values else None)
    tally.add_absent(targets[absent], len(networks))
    return ranks.gather_rows([rows[chosen]]).values[0]
