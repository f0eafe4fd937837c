"""The final score of every row of a stream, and the list of the most suspicious rows."""

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

LISTED = 100_000  # most rows in rows.csv


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

    A row that no step has scored has its final loss-layer gradient, scaled to the others' scores. This is as for tables
    in memory (`gradsieve.estimators.answers.row_scores`), except that the scale is computed from the sample.
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
    """The rows with the largest scores, in descending order, ties by position; never a row without a score."""
    count = min(most, int((~scores.isnan()).sum()))
    minus = -scores
    border = minus.kthvalue(count).values
    rows = (minus <= border).nonzero().squeeze(1)
    return rows[minus[rows].argsort(stable=True)][:count]


def listed_rows(shards: Shards, encoder: Encoder, networks: Sequence[nn.Module], scores: Tensor, kept: Tensor) -> str:
    """The content of rows.csv: the most suspicious rows, which are read once more."""
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
