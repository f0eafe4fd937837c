"""Which rows are wrong: an audit of every row from the one robust training run.

audit_run(folder)                   of a run of ``gradsieve train``, from its ledger and weights
audit_estimator(fitted, X, y)       of RobustClassifier and RobustRegressor
audit_file(path, ["target"])        of a table or a folder of images, which is fitted first
audit_probabilities(labels, probs)  of labels and out-of-sample probabilities, as cleanlab takes them
"""

from __future__ import annotations

from gradsieve.audit.arrays import audit_probabilities, issue_mask, label_quality, ranked_issues
from gradsieve.audit.copies import clean_file
from gradsieve.audit.estimator import audit_estimator
from gradsieve.audit.file import audit_file
from gradsieve.audit.result import Audit
from gradsieve.audit.run import audit_run
from gradsieve.audit.suspicion import suspicion

__all__ = [
    "Audit",
    "audit_estimator",
    "audit_file",
    "audit_probabilities",
    "audit_run",
    "clean_file",
    "issue_mask",
    "label_quality",
    "ranked_issues",
    "suspicion",
]
