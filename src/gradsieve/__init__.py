"""Gradsieve."""
