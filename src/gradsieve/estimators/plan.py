"""How networks are fitted to rows: method, drop rate, epochs, seed and so on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from gradsieve.arguments import argument
from gradsieve.counts import check_rate
from gradsieve.data import Task
from gradsieve.data.validate import check_count, check_positive
from gradsieve.errors import InputError
from gradsieve.estimators.learnt_rate import learning_epochs
from gradsieve.method import Method, make_method
from gradsieve.methods import DEFAULT_METHOD, METHODS
from gradsieve.schedule import linear_decay
from gradsieve.schedule import plan as plan_rates
from gradsieve.training.setting import CRITERIA

DROP_RATE = 0.2


@dataclass(frozen=True)
class Plan:
    """How to fit: everything but the rows and the network."""

    task: Task
    outputs: int  # of a network for a row
    method: str = DEFAULT_METHOD
    method_options: Mapping[str, Any] = field(default_factory=dict)
    drop_rate: float = DROP_RATE
    learns_rate: bool = False  # begin with that rate, then drop as many rows as seem wrong to the network
    schedule: str | None = None  # None: the method's own
    ramp: int | None = None  # epochs until the drop rate is reached; None: a tenth of them
    epochs: int = 100
    batch_size: int | Literal["auto"] = "auto"
    learning_rate: float = 1e-3
    validation_fraction: float = 0.0  # of the rows, held out for early stopping; 0: no early stopping
    patience: int = 10  # epochs without a better validation score
    seed: int = 0
    device: str = "auto"

    def __post_init__(self) -> None:
        check_plan(self)

    @property
    def ramp_epochs(self) -> int:
        return max(1, self.epochs // 10) if self.ramp is None else self.ramp

    def rates(self) -> list[float]:
        """The drop rate of each epoch."""
        schedule = self.schedule or METHODS[self.method].schedule
        return plan_rates(schedule, self.used_rate, self.ramp_epochs, self.epochs)

    @property
    def used_rate(self) -> float:
        """The share of rows that are dropped in the end; 0 if the method drops no rows."""
        return self.drop_rate if METHODS[self.method].drops_rows else 0.0

    def learning_epochs(self) -> set[int]:
        """The epochs after which the drop rate is estimated anew."""
        learns = self.learns_rate and METHODS[self.method].drops_rows
        return learning_epochs(self.task, self.epochs) if learns else set()

    def learning_rate_of(self, epoch: int) -> float:
        """Constant at first, then falling linearly to 0."""
        return linear_decay(epoch, self.epochs, self.learning_rate)

    def make_method(self) -> Method:
        return make_method(self.method, METHODS, CRITERIA[self.task], self.task, self.method_options)


def check_plan(plan: Plan) -> None:
    """Refuse settings that are wrong whatever the rows."""
    check_rate(argument("drop_rate"), plan.drop_rate)
    check_count(argument("epochs"), plan.epochs, 1)
    check_count("patience", plan.patience, 1)
    if plan.ramp is not None:
        check_count(argument("ramp"), plan.ramp, 0)
    if isinstance(plan.batch_size, str):
        if plan.batch_size != "auto":
            raise InputError(f"{argument('batch_size')} is {plan.batch_size!r}, but must be a whole number or 'auto'.")
    else:
        check_count(argument("batch_size"), plan.batch_size, 2 if METHODS[plan.method].drops_rows else 1)
    check_positive(argument("learning_rate"), plan.learning_rate)
    check_rate("validation_fraction", plan.validation_fraction)
    plan.make_method()
    plan.rates()
