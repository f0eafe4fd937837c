"""Other people's training loops: what feeds a ``RobustLoss`` the time and reads its figures out.

The loss itself works in all of them as it is. Accelerate needs nothing more (``examples/accelerate_example.py``).
"""
