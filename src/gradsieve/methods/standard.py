"""Standard: plain training, the baseline of every table."""

from gradsieve.method import Method


class Standard(Method):
    """Train on every row with the task's own loss."""
