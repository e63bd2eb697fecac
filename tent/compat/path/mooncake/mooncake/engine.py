"""`mooncake.engine` over tent."""

from tent.compat import standing
from tent.compat.mooncake import *  # noqa: F403

standing.announce("mooncake.engine")
