"""Choosing on rows that cannot be trusted: between models (``vote``, ``scorer``) and between drop rates (``rates``)."""

RATES = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5)  # that "auto" tries; here, so that a run can be checked before torch is loaded
