"""Trimming in a training loop of your own: a loss to swap in, and a step for those who own the model."""
