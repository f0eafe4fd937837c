"""Co-PRL(L): two PRL(L) networks that exchange the rows they keep. Liu et al. 2021, Algorithm 3.

1. Each network drops the rows for which its own gradient at the loss layer is largest.
2. Update each network on the mean loss of the rows that the other one kept.
"""

from gradsieve.method import Exchange
from gradsieve.methods.prl_l import PRLL


class CoPRLL(Exchange, PRLL):
    """Two networks, each trained on the rows whose loss-layer gradient is small in the other."""
