"""Co-PRL(G): two PRL(G) networks that exchange the rows they keep."""

from gradsieve.method import Exchange
from gradsieve.methods.prl_g import PRLG


class CoPRLG(Exchange, PRLG):
    """Two networks, each trained on the rows whose whole gradient is small in the other."""
