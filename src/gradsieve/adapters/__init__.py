"""Other people's training loops: what feeds a ``RobustLoss`` the time and reads its figures out.

The loss itself works in all of them as it is. Accelerate and Ray Train need nothing more
(``examples/accelerate_example.py``, ``examples/ray_train_example.py``).
"""
