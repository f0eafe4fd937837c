"""Standard: plain training, the baseline of every table.

Update on the mean loss of all rows.
"""

from gradsieve.method import Method


class Standard(Method):
    """Train on all rows with the task's own loss."""
