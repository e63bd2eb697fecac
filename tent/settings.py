"""The settings of an Engine: from a dict, JSON text or a file, as one JSON object."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import Any, NamedTuple

from . import _html
from .errors import InvalidArgumentError


class Setting(NamedTuple):
    """One setting with the value in force. `origin` is "default", with the reason in brackets where the value was
    computed, "argument" or the environment's variable. `takes` describes the values that the key takes. `why` is the
    reason that the setting, or a part of it, has no effect: no such transport in this build, or no hardware."""

    value: Any
    origin: str
    active: bool
    help: str
    takes: str = ""
    why: str = ""

    @classmethod
    def of(cls, entry: Mapping[str, Any]) -> Setting:
        """From the engine's description."""
        return cls(*(entry[field] for field in cls._fields))


class Settings(dict[str, Setting]):
    """Every setting by its key; in a notebook a table of those that somebody set, and of the number of the others."""

    def _repr_html_(self) -> str:
        said = {key: setting for key, setting in self.items() if not setting.origin.startswith("default")}
        rows = [(key, s.value, s.origin, s.why or "yes", s.help) for key, s in said.items()]
        others = f"{len(self) - len(said)} settings have their defaults"
        return _html.table(("key", "value", "origin", "effect", "meaning"), rows, others)


def layers(config: Any, keywords: Mapping[str, Any]) -> tuple[str, str]:
    """The JSON texts of the settings, "" where there are none. The engine merges them key by key; keywords win."""
    return _text(_load(config)), _text(keywords)


def _text(tree: Mapping[str, Any]) -> str:
    try:
        return json.dumps(tree) if tree else ""
    except (TypeError, ValueError) as error:
        raise InvalidArgumentError(f"the settings are not JSON: {error}") from None


def _load(config: Any) -> dict[str, Any]:
    if config is None:
        return {}
    if isinstance(config, Mapping):
        return dict(config)
    if not isinstance(config, (str, os.PathLike)):
        raise InvalidArgumentError(f"config is {type(config).__name__!r}: a dict, JSON text or a path is needed")
    text, origin = str(config), "config"
    if not text.lstrip().startswith("{"):
        origin = text
        try:
            with open(text, encoding="utf-8") as file:
                text = file.read()
        except OSError as error:
            raise InvalidArgumentError(
                f"the settings {origin!r} cannot be read: {error.strerror}", hint=f"a name is Engine(name={text!r})"
            ) from None
    try:
        tree = json.loads(text)
    except ValueError as error:
        raise InvalidArgumentError(f"{origin} is not JSON: {error}", code="MALFORMED_JSON") from None
    if not isinstance(tree, dict):
        raise InvalidArgumentError(f"{origin} is not a JSON object", code="MALFORMED_JSON")
    return tree
