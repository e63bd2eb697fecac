"""The terms of a stack's transfers, which have no place in the signatures of NIXL and Mooncake."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from .. import quantities
from .._text import shown
from ..enums import PRIO_HIGH, PRIO_LOW, PRIO_MEDIUM
from ..errors import InvalidArgumentError

VARIABLE = "TENT_COMPAT"

_PRIORITIES = {"high": PRIO_HIGH, "medium": PRIO_MEDIUM, "low": PRIO_LOW}
KEYS = ("priority", "timeout", "integrity", "config")


@dataclass(frozen=True)
class Options:
    """Terms of every transfer of an agent, and the settings of its engine.

    Example:
        from tent.compat.options import Options

        Options.of({"priority": "low", "timeout": "30s", "integrity": "crc32c", "config": {"log_level": "error"}})
    """

    priority: int | None = None
    timeout: float | None = None
    integrity: str | None = None
    config: Mapping[str, Any] | None = field(default=None, hash=False)

    @classmethod
    def of(cls, given: Mapping[str, Any] | None, where: str = "options") -> Options:
        """Checks a mapping; an error names its key. None is the mapping of the environment, TENT_COMPAT as JSON."""
        if given is None:
            return cls._of_environment()
        for key in given:
            if key not in KEYS:
                raise InvalidArgumentError(f"{where}: {key!r} is unknown", hint=f"known: {', '.join(KEYS)}")
        priority = given.get("priority")
        if isinstance(priority, str):
            if priority.lower() not in _PRIORITIES:
                raise InvalidArgumentError(f"{where}: priority is {shown(priority)}: it must be high, medium or low")
            priority = _PRIORITIES[priority.lower()]
        elif priority is not None and (isinstance(priority, bool) or priority not in _PRIORITIES.values()):
            raise InvalidArgumentError(f"{where}: priority is {shown(priority)}: it must be high, medium or low")
        timeout = given.get("timeout")
        if timeout is not None:
            timeout = quantities.seconds_of(timeout, f"{where}: timeout")
        integrity = given.get("integrity")
        if integrity not in (None, "crc32c"):
            raise InvalidArgumentError(f'{where}: integrity is {shown(integrity)}: it must be "crc32c" or null')
        config = given.get("config")
        if config is not None and not isinstance(config, Mapping):
            raise InvalidArgumentError(f"{where}: config is {shown(config)}: it must be an object of settings")
        return cls(priority, timeout, integrity, config)

    @classmethod
    def _of_environment(cls) -> Options:
        text = os.environ.get(VARIABLE, "").strip()
        if not text:
            return cls()
        try:
            given = json.loads(text)
        except ValueError as error:
            raise InvalidArgumentError(f"{VARIABLE} is not JSON: {error}") from None
        if not isinstance(given, dict):
            raise InvalidArgumentError(f"{VARIABLE} is {text!r}: it must be a JSON object")
        return cls.of(given, VARIABLE)

    @property
    def terms(self) -> dict[str, Any]:
        """The keywords of a move."""
        return {"priority": self.priority, "timeout": self.timeout, "integrity": self.integrity}
