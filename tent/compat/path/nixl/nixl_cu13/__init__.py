"""`import nixl_cu13` finds this where `tent run` or PYTHONPATH has put tent in NIXL's place."""

from tent.compat.nixl import *  # noqa: F403
from tent.compat.nixl.modules import stand_for

stand_for(__name__)
