"""Small tensors gain nothing from threads, and threads that wait for each other on busy cores cost minutes."""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch is imported; processes that tests start inherit it
