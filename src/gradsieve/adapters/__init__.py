"""Callbacks for training frameworks: they tell a ``RobustLoss`` the time, and log its figures.

The loss itself works in all frameworks as it is. Accelerate and Ray Train need nothing more
(``examples/accelerate_example.py``, ``examples/ray_train_example.py``).
"""
