"""A look at a transfer that also drives it, as the looks of NIXL and Mooncake do."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ..transfer import Transfer


def ended(transfer: Transfer) -> bool:
    """Whether a transfer has ended. If not, its engine works for a moment first: it takes completions, and copies one
    piece of at most 512 KiB itself.

    done() lets it work at every 128th look, for loops that look without a pause. Stacks look once a step, which is a
    millisecond in vLLM. Their thread has a processor then, and the engine's own threads may wait for one.
    """
    if not transfer.done():
        with contextlib.suppress(TimeoutError):
            transfer.wait(0)
    return transfer.done()
