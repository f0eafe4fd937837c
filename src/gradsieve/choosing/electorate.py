"""Which rows the candidates for a drop rate are trained on, and which of the other rows vote on them."""

from __future__ import annotations

from typing import NamedTuple

import torch

from gradsieve import seeds
from gradsieve.counts import part

SAMPLE = 45  # rows that take part, divided by the square root of all rows: all take part up to 2,025 rows
SAMPLE_ALONE = 40  # the same if a candidate is a single network: the race should cost about as much as one run
VOTERS = 0.2  # the share of these rows that no candidate is trained on
MOST_VOTERS = 5_000
LESSER = 0.25  # the share of these rows for a network that shows how residuals fall with the number of rows
MOST_PARTS = 5  # networks in a candidate, each trained on other rows and with voters of its own
PARTED_ROWS = 10_000  # the number of networks is at most this divided by the rows: one from 5,001 rows on


class Part(NamedTuple):
    """The rows for one network of a candidate."""

    trained: torch.Tensor  # the rows that it is trained on
    voters: torch.Tensor  # held-out rows that vote on it
    spare: torch.Tensor  # rows that do neither

    def widened(self) -> Part:
        """The same voters, with all other rows to train on."""
        return Part(torch.cat([self.trained, self.spare]), self.voters, self.spare[:0])

    def lessened(self) -> Part:
        """The same voters, with fewer rows to train on."""
        rows = max(1, part(LESSER, len(self.trained)))
        return Part(self.trained[:rows], self.voters, torch.cat([self.trained[rows:], self.spare]))


class Electorate(NamedTuple):
    """The rows of one data set, and their parts."""

    rows: torch.Tensor  # all of them, in the order in which the final fit reads them
    parts: tuple[Part, ...]

    @property
    def whole(self) -> Part:
        """All rows to train on, and all voters to predict for: no vote, but a rehearsal of the final fit."""
        voters = torch.cat([part.voters for part in self.parts])
        return Part(self.rows, voters, voters[:0])

    def renumbered(self, numbers: torch.Tensor) -> Electorate:
        """The same rows, with row i called ``numbers[i]``."""
        return Electorate(numbers[self.rows], tuple(Part(*(numbers[each] for each in part)) for part in self.parts))


def electorate(rows: int, seed: int) -> Electorate:
    """Split the rows into those that candidates are trained on, a sample if there are many, and those that vote.

    A vote costs far less than an epoch, so rows outside the sample vote as well. If there are few rows, one network
    leaves too few to vote: then a candidate is several networks, and each row votes on one that was not trained on it.
    """
    order = torch.randperm(rows, generator=seeds.generator(seed, "electorate"))
    parts = max(1, min(MOST_PARTS, PARTED_ROWS // rows))
    sample = min(rows, int((SAMPLE if parts > 1 else SAMPLE_ALONE) * rows**0.5))
    trained = sample - part(VOTERS, sample)
    voters = min(rows - trained, rows // parts)
    asked = min(voters, trained, MOST_VOTERS)
    turned = (order.roll(number * voters) for number in range(parts))
    split = (Part(each[:trained], each[rows - asked :], each[trained : rows - asked]) for each in turned)
    return Electorate(torch.arange(rows), tuple(split))
