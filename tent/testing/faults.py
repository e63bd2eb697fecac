"""Faults by method calls. Each builds a text in the language of `transports/faulty` and applies it: all of it can be
said in TENT_FAULTS and from Go in the same words."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from math import isfinite
from typing import TYPE_CHECKING, NamedTuple, TypedDict

from tent.enums import Priority
from tent.errors import InvalidArgumentError
from tent.quantities import bytes_of, integer_of, seconds_of, text_of

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from tent import Engine

Apply = Callable[[str], object]

NO_FAULT = re.compile(r"(\S+=\S+ )*heal|seed=(?P<seed>\d+)")  # the texts of heal() and seed()


class Struck(NamedTuple):
    """A fault that was injected, as a text, and how often it has struck."""

    text: str
    hits: int
    unused_ok: bool


def inject(engine: Engine, text: str) -> None:
    """Adds the faults of a text to those of an engine, or heals. PermissionDeniedError unless the engine was opened
    with allow_faults=True (or TENT_FAULTS is set), InvalidArgumentError with the place of a mistake."""
    engine._call(engine._library.pybind_InjectFaults, text)


def injected(engine: Engine) -> str:
    """Returns the faults of an engine now, in the same language."""
    return engine._call(engine._library.pybind_Faults)


def struck(engine: Engine) -> list[Struck]:
    """Returns the faults that were injected into an engine so far, healed ones included, and how often each has struck.

    The last 1024 are known. Ambient ones, such as the rate of a pair's rails, are left out.
    """
    return [Struck(**entry) for entry in engine._call_json(engine._library.pybind_FaultsStruck)]


def swap_transport_for_test(engine: Engine, slot: str, transport: str) -> None:
    """Puts a new instance of one transport into the slot of another, under the slot's name.

    So a failover between two can be driven where only one works. The engine allows faults and is unused so far; the
    peer needs the same (see Cluster's `swap`).
    """
    engine._call_long(engine._library.pybind_SwapTransportForTest, slot, transport)


def pace_of(rate: float | str, what: str = "slow") -> int:
    """Bytes a second, at least 1, from a number or a size."""
    return max(1, bytes_of(round(rate) if isinstance(rate, float) and isfinite(rate) else rate, what))


class How(TypedDict, total=False):
    """The parameters of faults; each takes those that make sense for it."""

    rate: float  # the probability with which it strikes, 0 to 1
    count: int  # it strikes so many times, then no more
    after_bytes: int | str  # it begins behind so many bytes of the selected slices
    after_slices: int  # and behind so many slices
    code: str  # of a reported error: "LOST", "PEER_UNREACHABLE", ...
    scope: str  # "slice", "rail", "link" or "transport"
    side: str  # "local", "remote" or "path"
    collateral: bool  # it is reported as the consequence of a neighbour's failure
    silent: bool  # withdrawals are not answered either
    unused_ok: bool  # the test does not fail if it never strikes


class Faults:
    """Faults of one or more engines: `Faults(engine).rail(1).blackhole(after_bytes="8MiB")`.

    `rail`, `op`, `to`, `transport`, `priority`, `nth` and `every` narrow the selection and return new Faults; the
    others inject at once. Those take, by keyword, `rate` (probability), `count` (times), `after_bytes`, `after_slices`,
    and for reported errors `code`, `scope`, `side`. `peer` means the engine at the other end.

    Under pytest a fault that has never struck when the test ends fails it: it has tested nothing. `unused_ok=True` says
    that it may.
    """

    def __init__(
        self,
        *engines: Engine | Apply,
        peer: Iterable[Engine | Apply] = (),
        rails: int | Callable[[], int] = 0,
        selectors: tuple[str, ...] = (),
    ) -> None:
        """`engines` are engines that allow faults, or functions that take a text; `peer` those at the other end.
        `rails` is their number to each peer, if it is known: an index beyond it is an error."""
        self._targets = engines
        self._peer = tuple(peer)
        self._rails = rails
        self._selectors = selectors

    @property
    def peer(self) -> Faults:
        """The same for the other end: faults of its engines."""
        return Faults(*self._peer, peer=self._targets, rails=self._rails, selectors=self._selectors)

    # Selection

    def _where(self, selector: str) -> Faults:
        return Faults(*self._targets, peer=self._peer, rails=self._rails, selectors=(*self._selectors, selector))

    def rail(self, index: int) -> Faults:
        """Rail `index` of each link, counted from 0: the pair of the addresses 127.0.0.(1 + index) of a Pair."""
        if isinstance(index, bool) or not isinstance(index, int) or index < 0:
            raise InvalidArgumentError(f"rail({index!r}): rails are numbered from 0")
        return self._where(f"rail={index}")

    def op(self, name: str) -> Faults:
        """Only "READ" or only "WRITE"."""
        return self._where(f"op={text_of(name, 'op', needed=True).upper()}")

    def to(self, address: str) -> Faults:
        """Only towards the peer with this address."""
        return self._where(f"peer={address}")

    def transport(self, name: str) -> Faults:
        """Only this transport."""
        return self._where(f"transport={name}")

    def priority(self, number: int) -> Faults:
        """Only slices of this priority."""
        if (n := integer_of(number)) is None or n not in list(Priority):
            raise InvalidArgumentError(f"priority({number!r}): it must be a tent.Priority")
        return self._where(f"class={n}")

    def nth(self, n: int) -> Faults:
        """Only the n-th slice of those, from 1."""
        return self._where(f"nth={n}")

    def every(self, n: int) -> Faults:
        """Each n-th slice of those."""
        return self._where(f"every={n}")

    # Faults of slices

    def reject(self, **how: Unpack[How]) -> None:
        """They fail at once, and nothing is sent."""
        self._inject("reject", how)

    def lose(self, **how: Unpack[How]) -> None:
        """They are delivered, and reported as failed."""
        self._inject("lose", how)

    def drop(self, **how: Unpack[How]) -> None:
        """They are lost on their way: nothing arrives, nothing comes back. `silent`: not even when they are
        withdrawn."""
        self._inject("drop", how)

    def drop_completion(self, **how: Unpack[How]) -> None:
        """They are delivered, and nothing comes back."""
        self._inject("drop_completion", how)

    def delay(self, time: float | str, **how: Unpack[How]) -> None:
        """They are delivered, and reported so much later: seconds, or "20ms"."""
        self._inject(f"delay={round(seconds_of(time, 'delay') * 1e6)}us", how)

    def duplicate(self, **how: Unpack[How]) -> None:
        """They are delivered twice."""
        self._inject("duplicate", how)

    def reorder(self, behind: int = 3, **how: Unpack[How]) -> None:
        """They are reported behind the next ones of their rail."""
        self._inject(f"reorder={behind}", how)

    def truncate(self, **how: Unpack[How]) -> None:
        """Half of each is delivered, and reported as failed; with `silent`, as delivered."""
        self._inject("truncate", how)

    def corrupt(self, **how: Unpack[How]) -> None:
        """A byte of each changes on its way, without a word; integrity="crc32c" notices."""
        self._inject("corrupt", how)

    # Faults of rails

    def blackhole(self, **how: Unpack[How]) -> None:
        """From here on nothing is sent and nothing comes back. `silent`: withdrawals are not answered either."""
        self._inject("blackhole", how)

    def slow(self, bytes_per_second: float | str, **how: Unpack[How]) -> None:
        """Each rail carries so much: bytes a second, or "10MiB"."""
        self._inject(f"slow={pace_of(bytes_per_second)}", how)

    def down(self, **how: Unpack[How]) -> None:
        """They go down at once, and stay down. `how` is unused_ok alone."""
        self._inject("down", how)

    def reset(self, **how: Unpack[How]) -> None:
        """They break at once, and come back as fast as they can. `how` is unused_ok alone."""
        self._inject("reset", how)

    # Faults of calls

    def fail_register(self, **how: Unpack[How]) -> None:
        """Registering memory fails."""
        self._inject("fail_register", how)

    def fail_attach(self, **how: Unpack[How]) -> None:
        """Attaching to a peer fails."""
        self._inject("fail_attach", how)

    def control_down(self, **how: Unpack[How]) -> None:
        """The control plane breaks and refuses; `silent`: it hangs. `to` selects by the address that is called."""
        self._inject("control_down", how)

    # The rest

    def heal(self) -> None:
        """Ends the faults that were injected with the same selectors; all of them without selectors. Where no engine is
        open, there are none to end."""
        self._apply(" ".join((*self._selectors, "heal")))

    def seed(self, number: int) -> None:
        """Chance follows this seed from now on, and so it does in engines that the fixtures make later."""
        self._apply(f"seed={number}")

    def inject(self, text: str) -> None:
        """A text as it is; the selectors of this object do not count."""
        self._apply(text_of(text, "text", needed=True))

    def _inject(self, fault: str, how: How) -> None:
        self._check_rails()
        words = [*self._selectors, fault]
        for name, value in how.items():
            if value is True:
                words.append(name)
            elif name == "after_bytes" and value is not None:
                words.append(f"after_bytes={bytes_of(value, name)}")
            elif value is not None and value is not False:
                words.append(f"{name}={value}")
        self._apply(" ".join(words))

    def _check_rails(self) -> None:
        rails = self._rails() if callable(self._rails) else self._rails
        for selector in self._selectors:
            name, _, index = selector.partition("=")
            if name == "rail" and 0 < rails <= int(index):
                some = "is rail 0 alone" if rails == 1 else f"are rails 0 to {rails - 1}"
                raise InvalidArgumentError(f"rail({index}) hits nothing: there {some}")

    def _apply(self, text: str) -> None:
        if not self._targets and not NO_FAULT.fullmatch(text):
            raise InvalidArgumentError(f"{text!r} hits nothing: there is no open engine; make it before its faults")
        for target in self._targets:
            if callable(target):
                target(text)
            else:
                inject(target, text)

    def __repr__(self) -> str:
        return f"<Faults of {len(self._targets)} engines{': ' if self._selectors else ''}{' '.join(self._selectors)}>"
