"""Trimming in your own training loop: a loss to swap in, and a whole training step."""
