"""Co-PRL(G): two PRL(G) networks that exchange the rows they keep.

1. Each network drops the rows for which its own gradient over all parameters is largest.
2. Update each network with the mean gradient of the rows that the other one kept.
"""

from gradsieve.method import Exchange
from gradsieve.methods.prl_g import PRLG


class CoPRLG(Exchange, PRLG):
    """Two networks, each trained on the rows whose gradient over all parameters is small in the other."""
