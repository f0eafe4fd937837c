"""Estimators: networks that are fitted to rows some of whose targets are wrong.

``fitting`` and ``scaling`` need torch and numpy alone; the classes of ``estimator`` speak scikit-learn's language.
"""
