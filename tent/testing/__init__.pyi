# Written by tools/stubs.py from the table in __init__.py.

from .faults import Faults, inject, injected, struck, swap_transport_for_test
from .memory import Memory, pattern
from .oracle import Oracle
from .pair import Cluster, Pair
from .peer import PeerProcess, There

__all__ = [
    "Cluster",
    "Faults",
    "Memory",
    "Oracle",
    "Pair",
    "PeerProcess",
    "There",
    "inject",
    "injected",
    "pattern",
    "struck",
    "swap_transport_for_test",
]
