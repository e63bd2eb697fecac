"""The settings of an Engine: from a dict, JSON text or a file, as one JSON object."""

from __future__ import annotations

import json
import os
import select
import stat
import time
from collections.abc import Mapping
from typing import Any, NamedTuple, NoReturn

from . import _html
from .errors import InvalidArgumentError
from .quantities import integer_of

_FILE_MAX = 4 << 20  # as gocore/config: a path that names a device by mistake must not fill memory
_PIPE_SECONDS = 10.0  # as gocore/config: for the bytes of a pipe, which may have no writer


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
    """Every setting by its key, to be read; in a notebook a table of those that somebody set, and of the number of the
    others."""

    def __setitem__(self, key: str, value: Any) -> NoReturn:
        raise TypeError("settings are given when an engine is made: Engine(config, **settings)")

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (dict(self),)

    def _repr_html_(self) -> str:
        said = {key: setting for key, setting in self.items() if not setting.origin.startswith("default")}
        rows = [(key, s.value, s.origin, s.why or "yes", s.help) for key, s in said.items()]
        others = f"{len(self) - len(said)} settings have their defaults"
        return _html.table(("key", "value", "origin", "effect", "meaning"), rows, others)


def layers(config: Any, keywords: Mapping[str, Any]) -> tuple[str, str]:
    """The JSON texts of the settings, "" where there are none. The engine merges them key by key; keywords win."""
    return _text(_load(config)), _text(keywords)


def parsed(text: str, origin: str) -> dict[str, Any]:
    """The object that a JSON text has. It is as strict as the engine is with a text that it reads itself."""
    try:
        tree = json.loads(text, object_pairs_hook=_each_once, parse_constant=_no_number)
    except RecursionError:
        raise InvalidArgumentError(f"{origin} is not JSON: it is nested too deeply", code="MALFORMED_JSON") from None
    except ValueError as error:
        raise InvalidArgumentError(f"{origin} is not JSON: {error}", code="MALFORMED_JSON") from None
    if not isinstance(tree, dict):
        raise InvalidArgumentError(f"{origin} is not a JSON object", code="MALFORMED_JSON")
    return tree


def read(path: str) -> str:
    """The text of a settings file, which may be a pipe. Raises OSError, and InvalidArgumentError for other bytes."""
    over = time.monotonic() + _PIPE_SECONDS
    found = bytearray()
    with open(path, "rb", buffering=0, opener=_without_a_wait) as file:
        pipe = select.poll()
        pipe.register(file, select.POLLIN)
        while pipe.poll(1000 * max(over - time.monotonic(), 0)):  # files are always ready
            if not (more := file.read(1 << 16)):
                break
            found += more
            if len(found) > _FILE_MAX:
                raise InvalidArgumentError(f"the settings {path!r} are larger than {_FILE_MAX >> 20} MiB")
        else:
            raise InvalidArgumentError(f"the settings {path!r} are a pipe that nobody has written in time")
        if not found and stat.S_ISFIFO(os.fstat(file.fileno()).st_mode):
            raise InvalidArgumentError(
                f"the settings {path!r} are a pipe, and nobody writes into it; or it was read already, since that of "
                "<(...) gives its text once"
            )
    try:
        return found.decode()
    except UnicodeDecodeError as error:
        raise InvalidArgumentError(
            f"the settings {path!r} are not UTF-8: {error.reason} at byte {error.start}", code="MALFORMED_JSON"
        ) from None


def _without_a_wait(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK)  # a FIFO would block until somebody writes


def _each_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"{next(n for n in names if names.count(n) > 1)!r} is given twice in one object")
    return found


def _no_number(word: str) -> None:
    raise ValueError(f"{word} is no number of JSON")


def _text(tree: Mapping[str, Any]) -> str:
    for key, value in tree.items():
        try:
            json.dumps(value, allow_nan=False, default=_plain)
        except (TypeError, ValueError, RecursionError) as error:
            raise InvalidArgumentError(f"the setting {key!r} is not JSON: {error}") from None
    return json.dumps(tree, default=_plain) if tree else ""


def _plain(value: Any) -> Any:
    """Paths and integers of NumPy in JSON's form."""
    if isinstance(value, os.PathLike):
        return os.fsdecode(value)
    if (n := integer_of(value)) is not None:
        return n
    return json.JSONEncoder().default(value)  # raises the usual error


def _load(config: Any) -> dict[str, Any]:
    if config is None:
        return {}
    if isinstance(config, Mapping):
        return dict(config)
    if not isinstance(config, (str, os.PathLike)):
        raise InvalidArgumentError(f"config is {type(config).__name__!r}: a dict, JSON text or a path is needed")
    text = os.fsdecode(config)
    if text.lstrip().startswith("{"):
        return parsed(text, "config")
    try:
        return parsed(read(text), text)
    except OSError as error:
        raise InvalidArgumentError(
            f"the settings {text!r} cannot be read: {error.strerror}", hint=f"a name is Engine(name={text!r})"
        ) from None
