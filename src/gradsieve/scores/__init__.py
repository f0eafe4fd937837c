"""Scores: how much each row pulls on the model, as one number per row."""
