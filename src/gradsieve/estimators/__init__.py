"""Estimators: networks that are fitted to rows some of whose targets are wrong.

``fitting`` and ``scaling`` need only torch and numpy; the classes in ``estimator`` follow scikit-learn's interface.
"""
