"""Which figures a report shows, for each subject and to compare several."""

from __future__ import annotations

from collections.abc import Sequence

from gradsieve.report.figures import (
    Figure,
    Histogram,
    Lines,
    bound_figure,
    drawable,
    histogram,
    rate_figure,
    test_figure,
    vote_figure,
)
from gradsieve.report.findings import is_dropped
from gradsieve.report.subjects import Subject


def subject_figures(subject: Subject) -> list[Figure]:
    """The curves of a run, its scores, and the suspicion of its rows."""
    found: list[Figure | None] = []
    if subject.history:
        title = f"{subject.metric[:1].upper()}{subject.metric[1:]} on the test rows"
        found.append(test_figure(title, subject.metric, {title: subject.history}))
        # Purity has a meaning only if it is known which rows are wrong.
        names = {"drop_rate": "drop rate"} if subject.drops_rows else {}
        names |= {"purity": "purity of the kept rows"} if subject.is_truth_known else {}
        found.append(rate_figure(subject.history, names))
    return drawable([*found, vote_figure(subject.pick), score_figure(subject), suspicion_figure(subject)])


def score_figure(subject: Subject) -> Histogram | None:
    """The mean scores over the run, of mostly kept and of mostly dropped rows."""
    ledger = subject.ledger
    if ledger is None or not bool(ledger.scored.any()):
        return None
    scores, dropped, scored = ledger.mean_score.double().numpy(), is_dropped(ledger), ledger.scored.numpy() > 0
    groups = {"mostly kept": scores[~dropped & scored], "mostly dropped": scores[dropped & scored]}
    return histogram("Scores of kept and dropped rows", "mean score over the run", groups)


def suspicion_figure(subject: Subject) -> Histogram | None:
    """The suspicion of flagged and other rows, if there is an audit."""
    findings = subject.findings
    if findings is None or findings.measure != "suspicion":
        return None
    groups = {"not flagged": findings.values[~findings.flagged], "flagged": findings.values[findings.flagged]}
    return histogram("Suspicion of the rows", "suspicion", groups, shown=1.0)


def certificate_figure(subject: Subject) -> Lines | None:
    """The measured error of the gradient beside its bounds."""
    return bound_figure(subject.history)


def compared_figures(subjects: Sequence[Subject]) -> list[Figure]:
    """One figure of test curves for each group of runs with the same data and metric."""
    groups: dict[tuple[str, str], list[Subject]] = {}
    for subject in subjects:
        if subject.history:
            groups.setdefault((str(subject.settings.get("data")), subject.metric), []).append(subject)
    return [
        test_figure(f"{data}: {metric} on the test rows", metric, {each.name: each.history for each in group})
        for (data, metric), group in groups.items()
        if len(group) > 1
    ]
