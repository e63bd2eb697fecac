"""The numbers that cross the border to the engine: terms, columns of packed requests, argument blocks.

Code generated from gocore/request/schema by go generate; DO NOT EDIT.
"""

from __future__ import annotations

import operator
from array import array
from collections.abc import Iterable
from typing import Any, Final

from ._text import shown
from ._transports import HINTS
from .enums import PRIO_HIGH, IntentType, OpCode, TransportType
from .errors import InvalidArgumentError
from .gpu_stream import handle

Terms = tuple[int, int, int, int, int, int, int, int, int, int]
Strided = tuple[int, int, int]  # address, code, stride: a sequence of integers
# notify, name_address, name_bytes, message_address, message_bytes, trace_address, trace_bytes
Note = tuple[int, int, int, int, int, int, int]

RECORD_WORDS: Final = 15  # of 64 bits, in one packed request

COLUMNS: Final = (  # of a packed request, in order
    "source",
    "target_id",
    "target_offset",
    "length",
    "target_region",
    "opcode",
    "priority",
    "transport_hint",
    "policy_name",
    "deadline_ns",
    "intent_type",
    "integrity",
    "durability",
    "require",
    "stream",
)

DOCS: Final = {  # by column
    "source": "Local address, registered or allocated, in either direction.",
    "target_id": "Handle of the segment; 0 is the engine's own memory.",
    "target_offset": "An address of the peer; counts from 0 in a segment opened on one region or a file.",
    "length": "Bytes.",
    "target_region": "Number of the region in which the offset counts; 0: as the segment was opened.",
    "opcode": "The direction: READ fetches from the peer, WRITE sends to it.",
    "priority": "The class: a smaller number is served first wherever requests of several classes wait.",
    "transport_hint": "The transport that is tried first; 0 leaves the choice to the policy.",
    "policy_name": "The policy that counts, by its name; without one the first that matches.",
    "deadline_ns": "The request ends as TIMEOUT when this instant passes; 0 is none.",
    "intent_type": "Why the bytes move; a policy may choose routes by it.",
    "integrity": "A checksum of each slice, verified where it arrives; a slice that does not match is sent again.",
    "durability": "For files: the batch ends when all that the request has written is on stable storage.",
    "require": "The only transports that may carry it: bit n modulo 64 for the one of number n; 0 is any.",
    "stream": "The stream of a device whose present work must be done before a byte moves; 0 is none.",
}

TAKES: Final = {  # by term: the values that it takes, for errors
    "opcode": "READ (0) or WRITE (1)",
    "priority": "tent.PRIO_HIGH (0), tent.PRIO_MEDIUM (1) or tent.PRIO_LOW (2)",
    "transport_hint": "the number of a transport",
    "policy_name": "the name of a policy",
    "deadline_ns": "below 2^63",
    "intent_type": "the number of an IntentType",
    "integrity": '"crc32c" (1) or None (0)',
    "durability": '"data" (1) or None (0)',
    "require": "names of transports, or a mask of their numbers",
    "stream": "a stream of a device, or its handle",
}

MEANING: Final = {  # of the keywords on objects
    "priority": "PRIO_HIGH, PRIO_MEDIUM or PRIO_LOW: urgent bytes pass the others. None: the setting default_priority.",
    "hint": "The transport to try first, by name or TransportType; the others follow when it fails.",
    "policy": "The name of the policy that counts, of those in the setting; empty: the first that matches.",
    "timeout": 'Seconds or "20ms" from this call on; then it ends as TIMEOUT, without a further byte. None: no limit.',
    "intent": "Why the bytes move, an IntentType; a policy may choose routes by it.",
    "integrity": '"crc32c": each slice carries a checksum, and one that changed on its way is sent again.',
    "durability": '"data", for files: it ends when all that it writes is on stable storage, as fdatasync promises.',
    "require": "The only transports that may carry it, by name, one or several; refused at once where none can.",
    "stream": "A torch.cuda.Stream, or what has __cuda_stream__: its work up to here is done before a byte moves.",
}

WORDS: Final[dict[str, dict[str | None, int]]] = {  # terms that are said as a word
    "integrity": {None: 0, "crc32c": 1},
    "durability": {None: 0, "data": 1},
}
_SAID: Final = {name: {number: word for word, number in words.items()} for name, words in WORDS.items()}


def number(name: str, word: Any) -> int:
    """The number of a term that is said as a word or None; InvalidArgumentError if there is no such word."""
    try:
        return WORDS[name][word]
    except (KeyError, TypeError):
        known = " or ".join(f'"{known}"' if known else "None" for known in reversed(WORDS[name]))
        raise InvalidArgumentError(f"{name} is {shown(word)}: it must be {known}") from None


def name_number(term: str, name: str) -> int:
    """The number of a name: its 64-bit FNV-1a hash in UTF-8, 0 for the empty name."""
    if not isinstance(name, str):
        raise InvalidArgumentError(f"{term} is {shown(name)}: it must be a text")
    number = 0xCBF29CE484222325 if name else 0
    for byte in name.encode(errors="surrogatepass"):
        number = (number ^ byte) * 0x100000001B3 & 0xFFFFFFFFFFFFFFFF
    return number


def mask(term: str, names: int | str | Iterable[str]) -> int:
    """The bits of the transports that are named; a mask stays as it is."""
    if hasattr(type(names), "__index__"):
        return operator.index(names)  # type: ignore[arg-type]
    bits = 0
    try:
        for name in (names,) if isinstance(names, str) else names:  # type: ignore[union-attr]
            bits |= 1 << (HINTS[name.lower()] & 63)
    except (AttributeError, KeyError, TypeError):
        known = ", ".join(sorted(set(HINTS) - {"unspec"}))
        raise InvalidArgumentError(
            f"{term} is {shown(names)}: it must be names of transports", hint=f"known: {known}"
        ) from None
    return bits


def wrong(terms: Terms) -> InvalidArgumentError:
    """Why terms do not fit into words: the first one that is not an integer of 64 bits, not negative."""
    for name, value in zip(TAKES, terms, strict=True):
        if not hasattr(type(value), "__index__") or not 0 <= value < 1 << 64:
            return InvalidArgumentError(f"{name} is {shown(value)}: it must be {TAKES[name]}")
    return InvalidArgumentError("an operand is not an integer of 64 bits, not negative")


def terms(
    opcode: int,
    priority: int = 0,
    transport_hint: int = 0,
    policy_name: int = 0,
    deadline_ns: int = 0,
    intent_type: int = 0,
    integrity: int = 0,
    durability: int = 0,
    require: int = 0,
    stream: int = 0,
) -> Terms:
    """The terms of a call, in the order in which the engine reads them."""
    return (
        opcode,
        priority,
        transport_hint,
        policy_name,
        deadline_ns,
        intent_type,
        integrity,
        durability,
        require,
        stream,
    )


def packed(terms: Terms) -> array[int]:
    """The terms alone. It must live until the call that reads it has returned."""
    words = terms
    try:
        return array("Q", words)
    except (OverflowError, TypeError):
        raise wrong(terms) from None


def record(
    terms: Terms, source: int, target_id: int, target_offset: int, length: int, target_region: int
) -> array[int]:
    """One packed request. It must live until the call that reads it has returned."""
    words = (source, target_id, target_offset, length, target_region, *terms)
    try:
        return array("Q", words)
    except (OverflowError, TypeError):
        raise wrong(terms) from None


def pages_block(
    terms: Terms,
    builder: int,
    local_grid: int,
    remote_grid: int,
    n: int,
    src: Strided,
    dst: Strided,
    note: int,
) -> array[int]:
    """The argument block of pages. It must live until the call that reads it has returned."""
    words = (
        *terms,
        builder,
        local_grid,
        remote_grid,
        n,
        *src,
        *dst,
        note,
    )
    try:
        return array("Q", words)
    except (OverflowError, TypeError):
        raise wrong(terms) from None


def ranges_block(
    terms: Terms,
    builder: int,
    local: int,
    local_bytes: int,
    target_id: int,
    target_region: int,
    target_offset: int,
    remote_bytes: int,
    n: int,
    local_offsets: Strided,
    remote_offsets: Strided,
    lengths: Strided,
    note: int,
) -> array[int]:
    """The argument block of ranges. It must live until the call that reads it has returned."""
    words = (
        *terms,
        builder,
        local,
        local_bytes,
        target_id,
        target_region,
        target_offset,
        remote_bytes,
        n,
        *local_offsets,
        *remote_offsets,
        *lengths,
        note,
    )
    try:
        return array("Q", words)
    except (OverflowError, TypeError):
        raise wrong(terms) from None


class Columns:
    """The columns of a RequestArray: writable views, one number of 64 bits for each request."""

    __slots__ = ()

    source: Any
    target_id: Any
    target_offset: Any
    length: Any
    opcode: Any
    priority: Any
    transport_hint: Any
    policy_name: Any
    deadline_ns: Any
    intent_type: Any
    integrity: Any
    durability: Any
    require: Any
    stream: Any


class Fields:
    """The operands and terms of a Request, with Mooncake's names and positional order."""

    __slots__ = (
        "_durability",
        "_integrity",
        "_policy_name",
        "_require",
        "_said_policy_name",
        "_stream",
        "deadline_ns",
        "intent_type",
        "length",
        "opcode",
        "priority",
        "source",
        "target_id",
        "target_offset",
        "trace",
        "transport_hint",
    )

    _target_region = 0

    def __init__(
        self,
        opcode: OpCode = OpCode.READ,
        source: int = 0,
        target_id: int = 0,
        target_offset: int = 0,
        length: int = 0,
        priority: int = PRIO_HIGH,
        transport_hint: TransportType = TransportType.UNSPEC,
        policy_name: str = "",
        deadline_ns: int = 0,
        intent_type: IntentType = IntentType.UNSPEC,
        integrity: str | None = None,
        durability: str | None = None,
        require: int | str | Iterable[str] = 0,
        stream: object = None,
        trace: str | None = None,
    ) -> None:
        self.opcode = opcode
        self.source = source
        self.target_id = target_id
        self.target_offset = target_offset
        self.length = length
        self.priority = priority
        self.transport_hint = transport_hint
        self._policy_name = name_number("policy_name", policy_name) if policy_name else 0
        self._said_policy_name = policy_name
        self.deadline_ns = deadline_ns
        self.intent_type = intent_type
        self._integrity = 0 if integrity is None else number("integrity", integrity)
        self._durability = 0 if durability is None else number("durability", durability)
        self._require = mask("require", require) if require else 0
        self._stream = 0 if stream is None else handle(stream)
        self.trace = trace

    @property
    def policy_name(self) -> str:
        """The policy that counts, by its name; without one the first that matches."""
        return self._said_policy_name

    @policy_name.setter
    def policy_name(self, name: str) -> None:
        self._policy_name = name_number("policy_name", name)
        self._said_policy_name = name

    @property
    def integrity(self) -> str | None:
        """A checksum of each slice, verified where it arrives; a slice that does not match is sent again."""
        return _SAID["integrity"][self._integrity]

    @integrity.setter
    def integrity(self, word: str | None) -> None:
        self._integrity = number("integrity", word)

    @property
    def durability(self) -> str | None:
        """For files: the batch ends when all that the request has written is on stable storage."""
        return _SAID["durability"][self._durability]

    @durability.setter
    def durability(self, word: str | None) -> None:
        self._durability = number("durability", word)

    @property
    def require(self) -> int:
        """The only transports that may carry it: bit n modulo 64 for the one of number n; 0 is any."""
        return self._require

    @require.setter
    def require(self, names: int | str | Iterable[str]) -> None:
        self._require = mask("require", names)

    @property
    def stream(self) -> int:
        """The stream of a device whose present work must be done before a byte moves; 0 is none."""
        return self._stream

    @stream.setter
    def stream(self, given: object) -> None:
        self._stream = 0 if given is None else handle(given)


PACKED: Final = (  # attributes of Fields, in the order of COLUMNS
    "source",
    "target_id",
    "target_offset",
    "length",
    "_target_region",
    "opcode",
    "priority",
    "transport_hint",
    "_policy_name",
    "deadline_ns",
    "intent_type",
    "_integrity",
    "_durability",
    "_require",
    "_stream",
)
