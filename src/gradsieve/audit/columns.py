"""An audit as columns of rows, as a table of classes, and as a summary."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from gradsieve.audit.result import Audit

VANISHING = 0.5  # a class is about to vanish if its kept share is below this multiple of all rows'
RARE = 0.5  # a class is rare if it has fewer rows than this multiple of the mean over classes


def table(audit: Audit, rows: NDArray[np.integer]) -> dict[str, NDArray[Any]]:
    """The columns of some rows, in the order of the CSV."""
    columns: dict[str, NDArray[Any]] = {"row": audit.row[rows]}
    if audit.ids is not None:
        columns["id"] = audit.ids[rows]
    if audit.files is not None:
        columns["file"] = audit.files[rows]
    columns |= {"suspicion": audit.suspicion[rows], "flagged": audit.flagged[rows]}
    columns |= readable(audit, "given", audit.given[rows]) | readable(audit, "suggested", audit.suggested[rows])
    if audit.confidence is not None:
        columns["confidence"] = audit.confidence[rows]
    if audit.kind is not None:
        columns["kind"] = audit.kind[rows]
    if audit.off is not None and len(audit.names) > 1:
        columns["off"] = listed(audit.names, audit.off[rows])
    if audit.gaps:
        columns["gaps"] = listed(audit.gaps, np.stack([gap[rows] for gap in audit.gaps.values()], axis=1))
    return columns | {
        "rank": audit.rank[rows],
        "seen": audit.seen[rows],
        "dropped": audit.dropped[rows],
        "mean_score": audit.mean_score[rows],
    }


def readable(audit: Audit, column: str, values: NDArray[Any]) -> dict[str, NDArray[Any]]:
    """Classes by their names, or a column for each output of real-valued targets."""
    if audit.task == "classification":
        return {column: np.array(audit.names, dtype=object)[values]}
    if len(audit.names) == 1:
        return {column: values[:, 0]}
    return {f"{column} {name}": values[:, place] for place, name in enumerate(audit.names)}


def listed(names: Iterable[str], is_so: NDArray[np.bool_]) -> NDArray[np.object_]:
    """For each row of ``is_so`` (n, names), the names that are True, with semicolons between them."""
    patterns, which = np.unique(is_so, axis=0, return_inverse=True)  # the patterns are few, however many rows there are
    texts = [";".join(name for name, is_named in zip(names, row, strict=True) if is_named) for row in patterns]
    return np.array(texts, dtype=object)[which.ravel()]


def by_class(audit: Audit) -> list[dict[str, Any]]:
    """For each class, what was kept, flagged and suggested; empty for regression."""
    if audit.task != "classification":
        return []
    classes = len(audit.names)
    rows, flagged = counts(audit.given, classes), counts(audit.given[audit.flagged], classes)
    seen = np.bincount(audit.given, weights=audit.seen, minlength=classes)
    kept = seen - np.bincount(audit.given, weights=audit.dropped, minlength=classes)
    overall = kept.sum() / max(1.0, seen.sum())
    suggested = suggestions(audit.given[audit.flagged], audit.suggested[audit.flagged])
    found = []
    for place, name in enumerate(audit.names):
        share = kept[place] / seen[place] if seen[place] else math.nan
        found.append(
            {
                "name": name,
                "rows": int(rows[place]),
                "kept_share": float(share),
                "flagged": int(flagged[place]),
                "suggested": {audit.names[other]: count for other, count in suggested.get(place, ())},
                "warning": warning(name, float(share), float(overall), rows[place] < RARE * len(audit) / classes),
            }
        )
    return found


def suggestions(given: NDArray[Any], suggested: NDArray[Any]) -> dict[int, list[tuple[int, int]]]:
    """Which other classes are suggested for each class's rows (n,), and how often, the most frequent first."""
    is_other = given != suggested  # a flagged label may be suggested itself: the network has memorized it
    pairs, times = np.unique(np.stack([given, suggested])[:, is_other], axis=1, return_counts=True)
    found: dict[int, list[tuple[int, int]]] = {}
    for place in np.argsort(-times, kind="stable"):
        own, other = pairs[:, place].tolist()
        found.setdefault(own, []).append((other, int(times[place])))
    return found


def counts(numbers: NDArray[Any], length: int) -> NDArray[np.int64]:
    return np.bincount(numbers, minlength=length)


def warning(name: str, kept_share: float, overall: float, is_rare: bool) -> str:
    """A sentence where a class is kept much less than the rest: its rows need not be wrong."""
    if not kept_share < VANISHING * overall:
        return ""
    return (
        f"only {kept_share:.0%} of class {name} was kept, {overall:.0%} of all rows: its rows may be "
        f"{'rare' if is_rare else 'hard to tell by the inputs'} and not wrong. Look at them, or give the method option "
        "balanced=true, which trims every class alike."
    )


def summary(audit: Audit) -> dict[str, Any]:
    """The audit without its rows, in plain values."""
    found: dict[str, Any] = {
        "run": audit.run,
        "task": audit.task,
        "names": list(audit.names),
        **({"target": list(audit.targets)} if audit.targets else {}),
        "rows": len(audit),
        "flagged": int(audit.flagged.sum()),
        "rate": audit.rate,
        "rate_source": audit.rate_source,
        "method": audit.method,
        "warnings": list(audit.warnings),
    }
    if audit.kind is not None and audit.off is not None:
        kinds, times = np.unique(audit.kind[audit.flagged].astype(str), return_counts=True)
        found["kinds"] = dict(zip(kinds.tolist(), times.tolist(), strict=True))
        found["off"] = dict(zip(audit.names, audit.off[audit.flagged].sum(0).tolist(), strict=True))
    else:
        found["classes"] = by_class(audit)
    return found
