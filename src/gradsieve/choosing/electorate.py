"""Who is asked about a drop rate: which rows the candidates learn from, and which of the others vote on them."""

from __future__ import annotations

from typing import NamedTuple

import torch

from gradsieve import seeds
from gradsieve.counts import part

ENOUGH = 45  # times the square root of the rows: so many take part, all of them up to 2,025 rows,
ENOUGH_OF_MANY = 40  # and so many where there is one network to a candidate: a race should cost about one run
VOTERS = 0.2  # of those
MOST_VOTERS = 5_000
MOST_PARTS = 5  # networks of a candidate, each with voters of its own,
PARTED_ROWS = 10_000  # and no more than this divided by the rows: one from 5,001 rows on


class Part(NamedTuple):
    """Of an electorate."""

    trained: torch.Tensor  # the rows that a network learns from,
    voters: torch.Tensor  # and those that it is asked about
    spare: torch.Tensor  # neither

    def widened(self) -> Part:
        """All rows but the voters are learnt from."""
        return Part(torch.cat([self.trained, self.spare]), self.voters, self.spare[:0])


class Electorate(NamedTuple):
    """Of one set."""

    rows: torch.Tensor  # all of them, as the fit in the end reads them
    parts: tuple[Part, ...]

    @property
    def whole(self) -> Part:
        """All rows are learnt from, and all voters asked: no vote, but what the fit in the end will say."""
        voters = torch.cat([part.voters for part in self.parts])
        return Part(self.rows, voters, voters[:0])

    def renumbered(self, numbers: torch.Tensor) -> Electorate:
        """The same, where row i goes by ``numbers[i]``."""
        return Electorate(numbers[self.rows], tuple(Part(*(numbers[each] for each in part)) for part in self.parts))


def electorate(rows: int, seed: int) -> Electorate:
    """Which rows candidates are trained on, and which vote; a sample where there are many.

    A vote costs far less than an epoch, so rows that are not in the sample vote as well. Of few rows more vote than one
    network leaves: a candidate is then several networks, and each row votes on one that did not see it.
    """
    order = torch.randperm(rows, generator=seeds.generator(seed, "electorate"))
    parts = max(1, min(MOST_PARTS, PARTED_ROWS // rows))
    sample = min(rows, int((ENOUGH if parts > 1 else ENOUGH_OF_MANY) * rows**0.5))
    trained = sample - part(VOTERS, sample)
    voters = min(rows - trained, rows // parts)
    asked = min(voters, trained, MOST_VOTERS)
    turned = (order.roll(number * voters) for number in range(parts))
    split = (Part(each[:trained], each[rows - asked :], each[trained : rows - asked]) for each in turned)
    return Electorate(torch.arange(rows), tuple(split))
