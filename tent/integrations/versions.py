"""The stacks that tent was tested with, and one warning for other versions of them."""

from __future__ import annotations

import logging

from .._version import __version__

logger = logging.getLogger("tent.integrations")

TESTED = {  # `make test-clients` runs the first of each
    "vLLM": ("0.32.0", "0.33.0"),
    "SGLang": ("0.5.23",),
    "LMCache": ("0.5.6",),
    "Ray": ("2.60.0",),
}


def unfit(stack: str, version: str, error: Exception, instead: str) -> RuntimeError:
    """The error for a version that lacks a part which tent takes hold of. `instead` is the cure."""
    tested = ", ".join(TESTED[stack])
    return RuntimeError(
        f"tent {__version__} does not fit {stack} {version}: {error}; it was tested with {stack} {tested}: {instead}"
    )


def warn_unless_tested(stack: str, version: str, instead: str) -> None:
    """Warns of another version. `instead` is the cure if it fails."""
    if version.partition("+")[0] not in TESTED[stack]:
        logger.warning(
            "tent %s was tested with %s %s, and this is %s %s: if it fails, %s",
            __version__, stack, ", ".join(TESTED[stack]), stack, version, instead,
        )  # fmt: skip
