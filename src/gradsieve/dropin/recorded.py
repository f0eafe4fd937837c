"""The part of a drop-in loss that reports on its last call, and keeps a ledger of the rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor

from gradsieve.data.validate import check_count
from gradsieve.dropin.checks import check_row_numbers
from gradsieve.dropin.judgement import Judgement
from gradsieve.dropin.scheduled import RateAt, Scheduled
from gradsieve.dropin.trimmed_loss import record
from gradsieve.errors import InputError
from gradsieve.training.ledger import Ledger


class Recorded(Scheduled):
    """A module that keeps its last judgement and, if given the size of the data set, enters it in a ledger."""

    def __init__(self, drop_rate: float | RateAt, ramp: int, rows: int | None) -> None:
        super().__init__(drop_rate, ramp)
        self.last: Callable[[], Judgement] | None = None
        self.has_ledger, self.has_entries = rows is not None, False
        if rows is not None:
            check_count("rows", rows, 1)
            for name, column in Ledger.empty(rows).tensors().items():
                self.register_buffer(name, column)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Recorded:
        """Move, but keep the ledger's sums in single precision: in half precision they would soon stop growing."""
        before = self.score_sum if self.has_ledger else None
        super()._apply(fn, recurse)
        if before is not None and self.score_sum.dtype != before.dtype:
            self.score_sum = before.to(self.score_sum.device)
        return self

    def set_extra_state(self, state: Tensor) -> None:
        super().set_extra_state(state)
        self.has_entries = True  # assumed: to look into the ledger would wait for the device

    def load_state_dict(self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False) -> Any:
        """Raise one error if only one of the state and this loss has a ledger, or if theirs are of different sizes."""
        columns = state_dict.get("judged"), getattr(self, "judged", None)
        theirs, ours = (None if column is None else len(column) for column in columns)
        if theirs != ours and (strict or None not in (theirs, ours)):
            there, here = ("no ledger" if size is None else f"a ledger of {size} rows" for size in (theirs, ours))
            way = "without rows=" if theirs is None else f"with rows={theirs}"
            raise InputError(f"The state has {there}, but this loss has {here}. Build it {way}.")
        return super().load_state_dict(state_dict, strict, assign)

    @property
    def scores(self) -> Tensor:
        """The score of each row or element of the last batch, (M,)."""
        return self.judgement().scores().clone()

    @property
    def kept(self) -> Tensor:
        """The positions in the last batch of what was kept, ascending: rows, or elements of the flattened targets."""
        return self.judgement().kept_positions()

    @property
    def kept_share(self) -> Tensor:
        """The share of the last batch that was kept, among the rows or elements that have a label."""
        return self.judgement().kept_share()

    @property
    def agreement(self) -> Tensor | None:
        """The share of the kept labels that the network itself predicts; None unless targets have one class for each
        position of the outputs.

        Without the true labels, it is the closest you get to the purity of the kept rows. It says little before the
        network has learned something, and nothing once it has memorized the wrong labels.
        """
        return self.judgement().kept_agreement()

    @property
    def ledger(self) -> Ledger:
        """For each row of the data set: how often it was judged and dropped, and its mean score. Needs ``rows``."""
        if not self.has_ledger:
            raise InputError("There is no ledger. Build the loss with rows=, the size of the data set.")
        if self.last is not None and not self.has_entries:
            raise InputError(
                "The ledger is empty: no call has said which rows it got. Pass their numbers in the data set, "
                "robust(outputs, targets, rows=numbers)."
            )
        return self.books()

    def books(self) -> Ledger:
        """The ledger, empty or not."""
        return Ledger(self.judged, self.dropped, self.scored, self.score_sum)  # pyright: ignore[reportArgumentType]

    def judgement(self) -> Judgement:
        if self.last is None:
            raise InputError("Nothing was judged yet. Call the loss in train mode first.")
        return self.last()

    def enter(self, rows: Tensor) -> None:
        """Enter the last batch in the ledger."""
        if not self.has_ledger:
            raise InputError(
                "There is no ledger for rows, the third argument: the numbers of these rows in the data set. Build the "
                "loss with rows=, its size. Weights of rows are no argument: put them beside the targets, for the "
                "criterion to multiply by (docs/drop-in.md)."
            )
        last, ledger = self.judgement(), self.books()
        scores = last.scores()
        check_row_numbers(rows, len(scores), len(ledger.judged))
        record(ledger, rows, scores, *last.masks(len(scores)))
        self.__dict__["has_entries"] = True
