"""How every row of a stream fared in the end, and the list of the most suspicious ones."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor, nn

from gradsieve.estimators.answers import last_scores, mean_outputs, scale_of_last
from gradsieve.method import Method
from gradsieve.streams.encoder import Encoded, Encoder
from gradsieve.tables.cells import to_csv
from gradsieve.tables.frame import Frame
from gradsieve.tables.shard_frames import read_slice
from gradsieve.tables.shard_reader import Reader
from gradsieve.tables.shards import SLICE, Shards, in_file_order
from gradsieve.tables.targets import given_targets, row_header
from gradsieve.training.ledger import Ledger

LISTED = 100_000  # rows of rows.csv, at most


def frames_with(shards: Shards, encoder: Encoder, wanted: Tensor) -> Iterator[Frame]:
    """The usable rows among those ``wanted`` (N,), slice by slice; groups without any are not read."""
    reader = Reader(shards, encoder.names)
    for group in shards.groups:
        for part in in_file_order([group], SLICE):
            chosen = wanted[part.first : part.first + part.rows].numpy()
            if chosen.any():
                yield encoder.usable(read_slice(reader, part).take(chosen))[0]


def score_rows(
    shards: Shards, encoder: Encoder, method: Method, networks: Sequence[nn.Module], ledger: Ledger, sample: Encoded
) -> Tensor:
    """(N,) float64: each row's mean score; NaN for rows that cannot be used.

    A row that no step has scored has its loss-layer gradient in the end, on the scale of the others: as in memory, but
    that the scale is the sample's.
    """
    scores = ledger.mean_score.double()
    scored = ledger.scored > 0
    if bool(scored.all()):
        return scores
    known, cpu = scored[sample.rows], torch.device("cpu")
    ratio = 1.0
    if bool(known.any()):
        final = last_scores(method, networks, sample.inputs, sample.targets, cpu)
        ratio = scale_of_last(method, scores[sample.rows[known]], final[known])
    for frame in frames_with(shards, encoder, ~scored):
        if len(frame):
            part = encoder.part(frame)
            scores[part.rows] = last_scores(method, networks, part.inputs, part.targets, cpu) * ratio
    return scores


def most_suspicious(scores: Tensor, most: int) -> Tensor:
    """The rows of largest score, the largest first, of equal ones the first; never a row without a score."""
    count = min(most, int((~scores.isnan()).sum()))
    minus = -scores
    border = minus.kthvalue(count).values
    rows = (minus <= border).nonzero().squeeze(1)
    return rows[minus[rows].argsort(stable=True)][:count]


def listed_rows(shards: Shards, encoder: Encoder, networks: Sequence[nn.Module], scores: Tensor, kept: Tensor) -> str:
    """rows.csv of the most suspicious rows, which are read once more."""
    order = most_suspicious(scores, LISTED)
    wanted = torch.zeros(len(scores), dtype=torch.bool)
    wanted[order] = True
    place = {int(row): number for number, row in enumerate(order)}
    lines: list[list] = [[]] * len(order)
    for frame in frames_with(shards, encoder, wanted):
        given = given_targets(frame, encoder.targets)
        outputs = mean_outputs(networks, encoder.encoding.apply(frame), encoder.targets.task)
        predicted = encoder.targets.readable(outputs)
        assert frame.row_numbers is not None
        for number, row in enumerate(frame.row_numbers.tolist()):
            figures = [row + 1, float(scores[row]), int(kept[row])]
            lines[place[row]] = [*figures, *given[number], *predicted[number]]
    return to_csv(row_header(encoder.targets), lines)
