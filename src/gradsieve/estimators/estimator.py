"""RobustClassifier and RobustRegressor: scikit-learn estimators for tables in which some targets are wrong."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import nn

from gradsieve import ranks
from gradsieve.choosing import AUTO, largest_rate
from gradsieve.choosing.pick import RatePick
from gradsieve.data import Rows, Task
from gradsieve.errors import InputError, MissingExtraError
from gradsieve.estimators.answers import mean_outputs
from gradsieve.estimators.auto_rate import choose_rate
from gradsieve.estimators.decorrelating import Decorrelation, check_decorrelate, decorrelation
from gradsieve.estimators.fitting import Fits, Fitted
from gradsieve.estimators.learnt_rate import LEARN
from gradsieve.estimators.module import Builder, network_maker
from gradsieve.estimators.plan import DROP_RATE, Plan
from gradsieve.estimators.progress import lines
from gradsieve.estimators.rows import is_copies
from gradsieve.estimators.scaling import (
    CLIP,
    Scale,
    check_clip,
    far_targets,
    robust_scale,
    scale_inputs,
    scale_targets,
    target_scale,
)
from gradsieve.estimators.targets import check_no_dates, read_targets
from gradsieve.methods import DEFAULT_METHOD
from gradsieve.training.setting import fingerprint

try:
    from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
    from sklearn.utils import check_random_state
    from sklearn.utils.multiclass import check_classification_targets
    from sklearn.utils.validation import _check_sample_weight, check_is_fitted, column_or_1d, validate_data
except ImportError as error:
    raise MissingExtraError("scikit-learn 1.6 or newer", "sklearn", "RobustClassifier and RobustRegressor") from error

validated: Any = validate_data  # its annotations wrongly say that rows are text

PARAMETERS = """
    Parameters
    ----------
    method : str, default="prl-l"
        How to choose the rows to drop in each step: a name that ``gradsieve list`` shows, or ``"module:Class"``.
    drop_rate : float, "learn" or "auto", default=0.2
        The share of rows to drop. Set it to the share of targets that you believe to be wrong, 0 for none. A little
        more does no harm, but dropping rows of a table without wrong targets does (docs/estimators.md).
        "learn" starts at 0.2 and is reset, in the same fit, to the share of rows that seem wrong to the network: it
        costs nothing more and is made for audits (docs/audit.md). "auto" lets held-out rows choose
        (docs/unknown-rate.md). A fit then takes 2.4 times as long at 10,000 rows, 1.4 times at 100,000, and up to
        2,000 rows 17 times (classes) or 35 times (real-valued targets).
    module : torch.nn.Module or callable, default=None
        The network: a module (copied, and trained from its present weights), or a function that builds one for the
        shape of a row and the number of outputs. None: fully connected layers of ``hidden`` units.
    hidden : tuple of int, default=(256, 256)
        The units of each hidden layer, if ``module`` is None.
    epochs : int, default=100
        How many times to go through the rows.
    batch_size : int or "auto", default="auto"
        The largest number of rows in a batch. All batches of an epoch have the same size, chosen so that hardly any row
        is left over. "auto": 256, or fewer if there are less than 4,096 rows.
    learning_rate : float, default=1e-3
        The learning rate of Adam. It falls to 0 over the last 60 % of the epochs.
    schedule : str, default=None
        How the drop rate sets in: "ramp", "wait" or "constant", or ``"module:function"``. None: the method's default.
    ramp : int, default=None
        The number of epochs this takes. None: a tenth of all.
    input_clip : float, default=3.0
        Inputs are centred at their median, divided by their interquartile range, and smoothly clipped at this many of
        these ranges, so that heavy tails do no harm. ``float("inf")`` clips nothing.
    decorrelate : bool or "auto", default="auto"
        Whether to remove the correlations between the inputs (at most 1,000 columns) before the network sees them.
        "auto": only for a regressor whose ``module`` is None.
    early_stopping : bool, default=False
        Hold out ``validation_fraction`` of the rows, stop when their score has not improved for ``n_iter_no_change``
        epochs, and return to the best. Held-out rows are as wrong as the others, so their score is the mean loss of the
        share ``1 - drop_rate`` of them that has the smallest loss.
    validation_fraction : float, default=0.1
        The share of the rows to hold out for early stopping.
    n_iter_no_change : int, default=10
        How many epochs without improvement early stopping waits for.
    method_options : dict, default=None
        Options of the method, such as ``{"balanced": True}`` to drop the same share of every class.
    random_state : int, RandomState or None, default=None
        The seed of the weights and the row order. With an int, the same rows in any order give the same network.
    device : str, default="auto"
        A torch device, such as "cpu" or "cuda". "auto": a GPU if there is one.
    verbose : bool, default=False
        Whether to print a line of progress every few seconds.

    Attributes
    ----------
    drop_rate_ : float
        The share of rows that was dropped in the end: ``drop_rate``, what was learned or what "auto" chose, or 0 if the
        method drops none.
    corruption_rate_ : float
        The share of targets believed to be wrong: an estimate with "auto", otherwise ``drop_rate_``.
    rate_interval_ : (float, float) or None
        With "auto": the range that holds 90 % of the estimates when the voting rows are resampled.
    rate_choice_ : Choice or None
        With "auto": the last vote, between the drop rates that were trained to the end.
    rate_pick_ : RatePick or None
        With "auto": all of this, with the warning; ``gradsieve.choosing.picture`` shows it.
    row_scores_ : ndarray of shape (n_samples,)
        How far each row's target is from what the network expected, mean over the training; large is suspicious. NaN
        for rows of weight 0.
    kept_ : ndarray of shape (n_samples,)
        Which rows are trusted: the share ``1 - drop_rate_`` with the smallest score.
    times_seen_, times_dropped_ : ndarray of shape (n_samples,)
        How often each row was judged, and how often dropped: about once per epoch by each network.
    history_ : list of dict
        Loss, drop rate, learning rate (and validation score) of each epoch.
    module_ : torch.nn.Module
        The fitted network. ``modules_`` has all: co-methods train two, and predictions are their mean.
    n_features_in_, feature_names_in_
        As everywhere in scikit-learn.
"""


class _Robust(BaseEstimator):
    """What the two estimators share."""

    _task: Task

    def __init__(
        self,
        method: str = DEFAULT_METHOD,
        drop_rate: float | Literal["learn", "auto"] = DROP_RATE,
        *,
        module: nn.Module | Builder | None = None,
        hidden: Sequence[int] = (256, 256),
        epochs: int = 100,
        batch_size: int | Literal["auto"] = "auto",
        learning_rate: float = 1e-3,
        schedule: str | None = None,
        ramp: int | None = None,
        input_clip: float = CLIP,
        decorrelate: bool | Literal["auto"] = "auto",
        early_stopping: bool = False,
        validation_fraction: float = 0.1,
        n_iter_no_change: int = 10,
        method_options: Mapping[str, Any] | None = None,
        random_state: Any = None,
        device: str = "auto",
        verbose: bool = False,
    ) -> None:
        self.method = method
        self.drop_rate = drop_rate
        self.module = module
        self.hidden = hidden
        self.epochs = epochs
        self.batch_size = batch_size
        self.learning_rate = learning_rate
        self.schedule = schedule
        self.ramp = ramp
        self.input_clip = input_clip
        self.decorrelate = decorrelate
        self.early_stopping = early_stopping
        self.validation_fraction = validation_fraction
        self.n_iter_no_change = n_iter_no_change
        self.method_options = method_options
        self.random_state = random_state
        self.device = device
        self.verbose = verbose

    def _rows(self, X: ArrayLike, y: ArrayLike, **options: Any) -> tuple[Any, Any]:
        """Inputs and targets as arrays, checked by scikit-learn."""
        check_no_dates("X", X)
        if self._task == "regression":
            check_no_dates("y", y)
        return validated(self, X, read_targets(y), dtype=(np.float64, np.float32), ensure_min_samples=2, **options)

    def _plan(self, outputs: int) -> Plan:
        """The parameters, checked."""
        return Plan(
            task=self._task,
            outputs=outputs,
            method=self.method,
            method_options=self.method_options or {},
            drop_rate=DROP_RATE if self.drop_rate == LEARN else largest_rate(plain(self.drop_rate)),
            learns_rate=self.drop_rate == LEARN,
            schedule=self.schedule,
            ramp=plain(self.ramp),
            epochs=plain(self.epochs),
            batch_size=plain(self.batch_size),
            learning_rate=plain(self.learning_rate),
            validation_fraction=plain(self.validation_fraction) if self.early_stopping else 0.0,
            patience=plain(self.n_iter_no_change),
            seed=int(check_random_state(self.random_state).randint(np.iinfo(np.int32).max)),
            device=self.device,
        )

    def _fit(self, plan: Plan, X: NDArray, targets_at: Callable[[bool], NDArray], weights: NDArray | None) -> Fitted:
        """Scale the inputs, choose the rate, fit, and keep what is common to both tasks.

        Scaled targets depend on whether rows are dropped.
        """
        clip = check_clip(plain(self.input_clip))
        scale = robust_scale(X, weights)
        inputs = scale_inputs(X, scale, clip)
        network = network_maker(self.module, self.hidden, (X.shape[1],), plan.outputs)
        by_default = self._task == "regression" and self.module is None
        mixed = decorrelation(inputs, weights) if check_decorrelate(self.decorrelate, by_default) else None
        inputs = mixed.apply(inputs) if mixed else inputs
        tell = lines(type(self).__name__, plan.epochs) if self.verbose else lambda record: None
        with ranks.alone():  # in a process group too, each process fits to the rows that it gets
            fits = Fits(plan, inputs, targets_at, network, weights, tell)
            pick = choose_rate(fits) if self.drop_rate == AUTO else None
            if pick and pick.warning:
                warnings.warn(pick.warning, UserWarning, stacklevel=3)
            fitted = fits.at(pick.rate if pick else plan.drop_rate)
        self.input_scale_: Scale = scale
        # Parameters of this fit that predicting needs: if the user changes them, that is for the next fit.
        self._clip, self._is_exact = clip, self.module is None
        self.decorrelation_: Decorrelation | None = mixed
        self.modules_ = fitted.networks
        self.module_ = fitted.networks[0]
        self.drop_rate_ = fitted.drop_rate
        self.corruption_rate_ = pick.estimate if pick else fitted.drop_rate
        self.rate_interval_ = pick.interval if pick else None
        self.rate_choice_ = pick.choice if pick else None
        self.rate_pick_: RatePick | None = pick
        self.history_ = fitted.history
        self.n_iter_ = len(fitted.history)
        return fitted

    def _keep_rows(self, fitted: Fitted, used: NDArray[np.bool_], rows: NDArray, targets: NDArray) -> None:
        """Store each row's score, whether it is kept, and its counts; rows of weight 0 have none."""
        self._fitted_to = fingerprint_of(rows[used], targets)
        self.row_scores_ = np.full(len(used), np.nan)
        self.row_scores_[used] = fitted.row_scores
        self.kept_ = np.zeros(len(used), dtype=bool)
        self.kept_[used] = fitted.kept
        self.times_seen_, self.times_dropped_ = np.zeros((2, len(used)), dtype=np.int64)
        self.times_seen_[used], self.times_dropped_[used] = fitted.ledger.judged, fitted.ledger.dropped

    def _was_fitted_to(self, X: ArrayLike, targets: NDArray) -> bool:
        """Whether these are the rows of the fit, in their order; ``targets``: numbers of classes, or real values."""
        rows = validated(self, X, reset=False, dtype=(np.float64, np.float32))
        used = ~np.isnan(self.row_scores_)  # the others have weight 0
        return fingerprint_of(rows[used], targets[used]) == self._fitted_to

    def _outputs(self, X: ArrayLike) -> NDArray[np.float64]:
        check_is_fitted(self, "modules_")
        check_no_dates("X", X)
        values = validated(self, X, reset=False, dtype=(np.float64, np.float32))
        scaled = scale_inputs(values, self.input_scale_, self._clip)
        scaled = self.decorrelation_.apply(scaled) if self.decorrelation_ else scaled
        # The user's own module may not be made for double precision.
        return mean_outputs(self.modules_, scaled, self._task, self.device, exact=self._is_exact)


class RobustClassifier(ClassifierMixin, _Robust):
    __doc__ = f"""A network for classification, trained through wrong labels.
{PARAMETERS}    classes_ : ndarray of shape (n_classes,)
        The classes, sorted.

    Examples
    --------
    >>> from sklearn.datasets import load_digits
    >>> from gradsieve import RobustClassifier
    >>> X, y = load_digits(return_X_y=True)
    >>> model = RobustClassifier(drop_rate=0.1, epochs=10, random_state=0).fit(X, y)
    >>> model.score(X, y) > 0.9
    True
    """
    _task = "classification"

    def fit(self, X: ArrayLike, y: ArrayLike, sample_weight: ArrayLike | None = None) -> RobustClassifier:
        """Fit to ``X`` (n_samples, n_features) with classes ``y`` (n_samples,).

        Weights that are whole numbers count as copies of a row; other weights are scaled to mean 1.
        """
        rows, given = self._rows(X, y)
        labels = column_or_1d(given, warn=True)
        check_classification_targets(labels)
        weights, used = check_weights(sample_weight, rows)
        classes, numbers = np.unique(labels[used], return_inverse=True)
        if len(classes) < 2:
            raise InputError(
                f"y holds one class, {classes.tolist()[0]!r}, but a classifier tells classes apart: give rows of "
                "another one (with a weight above 0)."
            )
        targets = numbers.astype(np.int64)
        fitted = self._fit(self._plan(len(classes)), rows[used], lambda drops: targets, weights)
        if forsaken := fitted.forsaken(classes.tolist()):
            warnings.warn(forsaken, UserWarning, stacklevel=2)
        self.classes_ = classes
        self._keep_rows(fitted, used, rows, targets)
        return self

    def predict_proba(self, X: ArrayLike) -> NDArray[np.float64]:
        """The probability of each class, (n_samples, n_classes)."""
        return self._outputs(X)

    def predict_log_proba(self, X: ArrayLike) -> NDArray[np.float64]:
        """The logarithm of the probability of each class, (n_samples, n_classes); -inf if that is 0."""
        with np.errstate(divide="ignore"):
            return np.log(self.predict_proba(X))

    def predict(self, X: ArrayLike) -> NDArray:
        """The most probable class of each row."""
        probabilities = self._outputs(X)
        return self.classes_[probabilities.argmax(1)]


class RobustRegressor(RegressorMixin, _Robust):
    __doc__ = f"""A network for regression, with one target or many, trained through wrong targets.
{PARAMETERS}    target_scale_ : Scale
        The median and the width of each target, by which it is scaled before the network sees it.

    Examples
    --------
    >>> from sklearn.datasets import load_diabetes
    >>> from gradsieve import RobustRegressor
    >>> X, y = load_diabetes(return_X_y=True)
    >>> model = RobustRegressor(drop_rate=0.1, epochs=20, random_state=0).fit(X, y)
    >>> model.score(X, y) > 0.4
    True
    """
    _task = "regression"

    def fit(self, X: ArrayLike, y: ArrayLike, sample_weight: ArrayLike | None = None) -> RobustRegressor:
        """Fit to ``X`` (n_samples, n_features) with targets ``y`` (n_samples,) or (n_samples, n_outputs).

        Weights that are whole numbers count as copies of a row; other weights are scaled to mean 1.
        """
        rows, given = self._rows(X, y, multi_output=True, y_numeric=True)
        weights, used = check_weights(sample_weight, rows)
        targets = np.asarray(given, dtype=np.float64).reshape(len(rows), -1)[used]
        scale = target_scale(targets, weights)
        plan = self._plan(targets.shape[1])
        fitted = self._fit(plan, rows[used], lambda drops: scale_targets(targets, scale, drops), weights)
        if told := far_targets(targets, scale, fitted.drop_rate):
            warnings.warn(told, UserWarning, stacklevel=2)
        self.target_scale_ = scale
        self._is_column = given.ndim == 1
        self._keep_rows(fitted, used, rows, targets)
        return self

    def predict(self, X: ArrayLike) -> NDArray[np.float64]:
        """The predicted targets of each row, in the shape that the targets had in ``fit``."""
        outputs = self._outputs(X)
        predictions = self.target_scale_.invert(outputs)
        return predictions.ravel() if self._is_column else predictions

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        return tags


def fingerprint_of(X: NDArray, targets: NDArray) -> str:
    """A fingerprint of rows in their order; in single precision, since the same numbers may come in other types."""
    with np.errstate(over="ignore"):
        single = [torch.from_numpy(np.ascontiguousarray(values, dtype=np.float32)) for values in (X, targets)]
    return fingerprint(Rows(*single))


def plain(value: Any) -> Any:
    """A plain Python number: a grid of parameters may come from numpy."""
    return value.item() if isinstance(value, np.generic) else value


def check_weights(sample_weight: Any, X: NDArray) -> tuple[NDArray | None, NDArray[np.bool_]]:
    """The weights above 0, or None if they change nothing; and which rows have weights above 0."""
    if sample_weight is None:
        return None, np.ones(len(X), dtype=bool)
    weights = _check_sample_weight(sample_weight, X, dtype=np.float64, ensure_non_negative=True)
    used = weights > 0
    if not used.any():
        raise InputError("sample_weight is 0 for every row. Give some rows a weight above 0, or leave it out.")
    weights = weights[used]
    is_plain = (weights == weights[0]).all() and (weights[0] == 1 or not is_copies(weights))
    return None if is_plain else weights, used
