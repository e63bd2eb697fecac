"""Transfer: something under way, or ended. And how to wait for several of them."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextvars import Context
from itertools import repeat
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn
from weakref import ref

from . import _aio, _native, _text
from ._text import shown
from .callback import Callback
from .enums import TransferStatusEnum
from .errors import InvalidArgumentError, TentError, TransferError, transfer_error, translate
from .gpu_stream import handle
from .loop import run_soon
from .operands import blame
from .page import CANCELED, CELL_WORDS, COMPLETED, PENDING
from .quantities import limit_of, list_of, seconds_of

if TYPE_CHECKING:
    from .handle import Handle

FIRST_COMPLETED = "FIRST_COMPLETED"
FIRST_EXCEPTION = "FIRST_EXCEPTION"
ALL_COMPLETED = "ALL_COMPLETED"

_TURN_MS = 2  # of one engine, while transfers of several are waited for

_STATES = bytes(range(len(TransferStatusEnum)))  # takes the page's place once a transfer has been settled


class Outcome(NamedTuple):
    """The account of an ended transfer that outlives its engine."""

    bytes: int
    elapsed_ns: int
    summary: dict[str, Any]
    failure: dict[str, Any]
    failed_tasks: list[int]


class Transfer:
    """The result of a moving call: done() and result() as of a future, awaitable any number of times, from any thread
    and loop.

    Example:
        transfer = engine.write(region, segment["kv"])
        transfer.add_done_callback(lambda ended: print(ended.state))
        while not transfer.done():
            print(transfer.bytes, "of", transfer.total_bytes)
        assert transfer.wait() == tent.TransferStatusEnum.COMPLETED and transfer.exception() is None
        assert transfer.result() == await transfer == transfer.total_bytes
        assert not transfer.cancel() and not transfer.cancelled()  # it had ended
        assert await transfer.result_async(timeout=10) == transfer.total_bytes  # a coroutine, for task groups
        transfer.remove_done_callback(print)
        print(transfer.elapsed, transfer.transports, transfer.attempts, transfer.failovers)

    It ends once, as COMPLETED, FAILED, CANCELED or TIMEOUT, and from then on no byte of its memory is touched. Dropping
    it neither stops it nor releases its memory before the end.
    """

    __slots__ = (
        "__weakref__",
        "_asked",
        "_at",
        "_batch",
        "_engine",
        "_keep",
        "_outcome",
        "_states",
        "_total",
    )

    def __init__(self, engine: Handle, batch: int, total: int, keep: Sequence[object]) -> None:
        """For tent only. `keep` holds the operands, and with them the memory; a total of -1 is asked for when it is
        needed."""
        self._engine = engine
        self._batch = batch
        self._states: memoryview | bytes = engine._states
        self._at = batch & 0xFFFFFFFF
        self._total = total
        self._keep: Sequence[object] | None = keep
        self._asked = False
        self._outcome: Outcome | None = None
        engine._live[batch] = ref(self)

    def done(self) -> bool:
        """Whether it has ended and its memory is the caller's again. Costs no call; every 128th look at an engine's
        transfers lets it work, so that a loop of looks makes progress by itself."""
        try:
            if self._states[self._at] > 1:
                return True
        except ValueError:
            return self._state() > PENDING
        for _ in self._engine._looks:  # counts down without arithmetic
            return False
        self._engine._looks = repeat(None, _native.LOOKS_PER_CRANK - 1)
        _native.call(self._engine._library.pybind_Progress, self._engine._id)
        return self._state() > PENDING

    def result(self, timeout: float | str | None = None) -> int:
        """Waits for the end and returns the number of bytes. Raises TransferError if it ended in another way, the
        builtin TimeoutError if `timeout` seconds were not enough: then it goes on, and its memory is still in use."""
        try:  # as _state() does, without its cost
            state = self._states[self._at]
        except ValueError:
            state = self._state()
        if state <= PENDING:
            state = self._await_end(timeout)
        elif timeout is not None:
            seconds_of(timeout)
        if state == COMPLETED:
            return self._total if self._total >= 0 else self.bytes
        self._asked = True
        raise self._error(state)

    def exception(self, timeout: float | str | None = None) -> TransferError | None:
        """Waits like result() and returns the error instead of raising it; None if it has COMPLETED."""
        state = self._end(timeout)
        self._asked = True
        return None if state == COMPLETED else self._error(state)

    def wait(self, timeout: float | str | None = None) -> TransferStatusEnum:
        """Waits for the end and returns the final state, whichever it is. The builtin TimeoutError if time runs out."""
        return TransferStatusEnum(self._end(timeout))

    def cancel(self) -> bool:
        """Asks it to end soon; False if it has ended already. Its end comes within fence_timeout_*: wait for it."""
        if self._state() > PENDING:
            return False
        try:
            return bool(_native.call(self._engine._library.pybind_Cancel, self._engine._id, self._batch, -1))
        except TentError:
            if self._state() > PENDING:  # it ended, or its engine closed, meanwhile
                return False
            raise

    def wait_on(self, stream: object) -> int:
        """Makes a stream of a device wait for the end, whichever it is, and returns at once: no thread waits.

        Example:
            transfer = engine.read(region, segment["kv"], timeout="10s")
            try:
                transfer.wait_on(0)  # or torch.cuda.current_stream(): kernels behind it see the bytes
            except tent.InvalidArgumentError as error:
                print(error)  # there is no GPU
            transfer.result()  # raises if they did not come

        `stream` is as in stream=. Returns the address, on the device, of 32 bits: 0, and then the final state (its
        number in TransferStatusEnum), for kernels that look before they use the bytes. They may look until the transfer
        is dropped or its engine closes. Give the transfer a timeout: the stream waits as long as it takes, and
        a driver frees no memory meanwhile. Where the engine has been closed there is nothing to wait for: address 0.
        """
        if self._outcome is not None:
            return 0
        hold = self._engine._library.pybind_HoldStream
        return int(_native.call(hold, self._engine._id, self._batch, handle(stream)))

    def cancelled(self) -> bool:
        """Whether it ended by cancel(), as of a future."""
        return self._state() == CANCELED

    def add_done_callback(self, function: Callable[[Transfer], object], *, context: Context | None = None) -> None:
        """Calls function(self) on tent's Python thread after the end, also if it has come already. Callbacks of asyncio
        itself (asyncio.wait) run in the loop that added them."""
        if not callable(function):
            raise InvalidArgumentError(f"function is {shown(function)}: it must be callable")
        watcher = Callback(self, function, context)
        if self._outcome is None:
            self._engine._hub.watch(self._batch, watcher)
        else:
            run_soon(watcher, self._batch)

    def remove_done_callback(self, function: Callable[[Transfer], object]) -> int:
        """Forgets a callback that has not run; returns how often it had been added."""
        if self._outcome is not None:
            return 0
        return self._engine._hub.unwatch(
            self._batch, lambda watcher: isinstance(watcher, Callback) and watcher.function == function
        )

    async def result_async(self, timeout: float | str | None = None) -> int:
        """result() for asyncio: a coroutine, for create_task() and task groups, which take nothing that is merely
        awaitable. Its time-out cancels nothing."""
        return await _aio.result_within(self, timeout)

    def __bool__(self) -> NoReturn:
        raise InvalidArgumentError(
            "a Transfer is neither true nor false", hint="ask done(), or wait for result(), which raises on failure"
        )

    @property
    def _condition(self) -> NoReturn:
        raise TypeError("concurrent.futures.wait() takes the futures of executors: use tent.wait() or as_completed()")

    def __await__(self) -> Generator[Any, None, int]:
        return _aio.result(self).__await__()

    @property
    def state(self) -> TransferStatusEnum:
        """PENDING, or how it ended."""
        state = self._state()
        self._asked = self._asked or state > PENDING
        return TransferStatusEnum(state)

    @property
    def bytes(self) -> int:
        """Bytes acknowledged so far; the number never falls."""
        if self._outcome is not None:
            return self._outcome.bytes
        try:
            return self._engine._words[self._at * CELL_WORDS + 1]
        except ValueError:
            return self._gone().bytes

    @property
    def total_bytes(self) -> int:
        """Bytes asked for."""
        if self._total < 0:
            self._total = int(self._summary()["total"])
        return self._total

    @property
    def elapsed(self) -> float:
        """Seconds from submit to the end, or until now."""
        return self._elapsed_ns() / 1e9

    @property
    def transports(self) -> tuple[str, ...]:
        """Names of the transports that carried some of it."""
        return tuple(self._summary()["transports"] or ())

    @property
    def trace(self) -> str:
        """The caller's name for it, from `trace=`."""
        return str(self._summary()["trace"])

    @property
    def attempts(self) -> int:
        """Tries of its tasks on their routes, the first ones included."""
        return int(self._summary()["attempts"])

    @property
    def failovers(self) -> int:
        """How often one of its tasks moved on to its next route."""
        return int(self._summary()["failovers"])

    def __repr__(self) -> str:
        try:
            state = self._state()
            total = self.total_bytes
            amount = _text.size(total) if state == COMPLETED else f"{_text.size(self.bytes)} of {_text.size(total)}"
            parts = [TransferStatusEnum(state).name, amount, *self.transports, _text.duration(self._elapsed_ns())]
            # asyncio refuses to make a task of it, in words of its own and with this text: here is the cure.
            cure = "" if state == COMPLETED else "; a task takes result_async()"
            return f"<Transfer {' '.join(parts)}{cure}>"
        except TentError as error:
            return f"<Transfer of an engine that is gone: {error}>"

    def __reduce__(self) -> NoReturn:
        raise TypeError("a Transfer cannot be pickled; send engine.export() and open it in the other process")

    def __del__(self) -> None:
        if self._outcome is not None:
            return
        engine, batch = self._engine, self._batch
        try:
            del engine._live[batch]
        except KeyError:  # the engine is closing
            pass
        try:
            if self._total >= 0 and self._states[self._at] == COMPLETED and len(engine._spent) < engine._spare:
                engine._spent.append(batch)  # given back later, many at a time: that takes a call
                return
        except ValueError:
            return  # the engine has closed meanwhile, or this is a forked child
        engine._dropped(batch, self._at, self._keep, self._asked)

    def _state(self) -> int:
        try:
            return self._states[self._at]
        except ValueError:
            self._gone()
            return self._states[self._at]

    def _gone(self) -> Outcome:
        """The shared page is gone: either the outcome was taken when its engine closed, or this is a fork."""
        if self._outcome is not None:
            return self._outcome
        _native.check_process()
        if (end := self._engine._ends.get(self._batch)) is None:
            raise _native.closed_error()
        blame(end[1].failure, self._keep or ())
        return self._take(*end)

    def _elapsed_ns(self) -> int:
        if self._outcome is not None:
            return self._outcome.elapsed_ns
        ns = 0
        if self._state() > PENDING:
            ns = self._engine._words[self._at * CELL_WORDS + 2]
        return ns or int(self._summary()["elapsed_ns"])

    def _summary(self) -> dict[str, Any]:
        if self._outcome is None:
            try:
                summary: dict[str, Any] = self._engine._call_json(self._engine._library.pybind_Summary, self._batch)
                return summary
            except TentError:
                self._unless_settled()
        return self._gone().summary

    def _unless_settled(self) -> None:
        """Raises the error in hand again, unless another thread has closed the engine, which settled this transfer."""
        if self._outcome is None:
            raise  # noqa: PLE0704

    def _end(self, timeout: float | str | None) -> int:
        """Waits for the end and returns the state. A wrong time is an error also where the end has come before."""
        state = self._state()
        if state <= PENDING:
            return self._await_end(timeout)
        if timeout is not None:
            seconds_of(timeout)
        return state

    def _await_end(self, timeout: float | str | None) -> int:
        """Waits in Go, in slices such that Ctrl-C works, and returns the final state."""
        try:
            wait, engine, batch = self._engine._library.pybind_Wait, self._engine._id, self._batch
            if timeout is None:
                while (state := wait(engine, batch, _native.WAIT_SLICE_MS)) <= PENDING:
                    _native.check_process()  # a signal handler may have forked
                return state
            over = _native.instant(timeout)
            while True:
                left_ms = max(0, _native.left_ms(over))
                state = wait(engine, batch, min(left_ms, _native.WAIT_SLICE_MS))
                if state > PENDING:
                    return state
                _native.check_process()
                if left_ms == 0:
                    raise TimeoutError(f"the transfer has not ended within {limit_of(timeout)}; it goes on")
        except TentError:
            self._unless_settled()
        except RuntimeError as error:
            if self._outcome is None:
                raise translate(error) from None
        return self._state()

    def _failed_tasks(self) -> list[int]:
        call, engine = self._engine._library.pybind_FailedInto, self._engine._id
        capacity = 64
        while True:
            indexes = array("Q", bytes(8 * capacity))
            n = _native.call(call, engine, self._batch, indexes.buffer_info()[0], capacity)
            if n <= capacity:
                return indexes[:n].tolist()
            capacity = n

    def _error(self, state: int) -> TransferError:
        if self._outcome is None:
            try:
                return transfer_error(state, self._failure(), self._failed_tasks())
            except TentError:
                self._unless_settled()
        outcome = self._gone()
        return transfer_error(state, outcome.failure, outcome.failed_tasks)

    def _failure(self) -> dict[str, Any]:
        """Returns the engine's account of the failure."""
        failure: dict[str, Any] = self._engine._call_json(self._engine._library.pybind_Failure, self._batch)
        blame(failure, self._keep or ())
        return failure

    def _settle(self) -> None:
        """Takes everything that users may ask out of the engine, which is about to close; the transfer has ended."""
        if self._outcome is not None:
            return
        state = self._state()
        completed = state == COMPLETED
        failure, failed = ({}, []) if completed else (self._failure(), self._failed_tasks())
        self._take(state, Outcome(self.bytes, self._elapsed_ns(), self._summary(), failure, failed))

    def _take(self, state: int, outcome: Outcome) -> Outcome:
        self._at, self._states, self._outcome, self._keep = state, _STATES, outcome, None
        return outcome


def end_of(engine: Handle, batch: int) -> tuple[int, Outcome]:
    """Returns how a batch has ended, for the Transfer that another thread makes when its engine has closed."""
    transfer = Transfer(engine, batch, -1, ())
    transfer._settle()
    return transfer._at, transfer._gone()


def _list(transfers: Iterable[Transfer]) -> list[Transfer]:
    if isinstance(transfers, Transfer):
        raise InvalidArgumentError("several transfers are expected, not one", hint="give a list, or use its own wait()")
    return list_of(transfers, "transfers", "several transfers")


def _engines(transfers: list[Transfer]) -> set[Handle]:
    for transfer in transfers:
        if not isinstance(transfer, Transfer):
            raise InvalidArgumentError(f"a Transfer is expected, not {type(transfer).__name__!r}")
    return {transfer._engine for transfer in transfers}


def _wait_some(pending: list[Transfer], need: int, over: float) -> bool:
    """Waits until `need` of the pending transfers have ended; False if time ran out first. Transfers of one engine are
    waited for in its core; several engines take turns."""
    groups: list[tuple[Handle, list[Transfer], array[int]]] = []
    for engine in _engines(pending):
        members = [transfer for transfer in pending if transfer._engine is engine]
        groups.append((engine, members, array("Q", [transfer._batch for transfer in members])))
    turn_ms = _native.WAIT_SLICE_MS if len(groups) == 1 else _TURN_MS
    while True:
        ended = left_ms = 0
        for engine, members, ids in groups:
            left_ms = _native.left_ms(over)
            ended += _ended_of(engine, members, ids, min(need, len(ids)), max(0, min(left_ms, turn_ms)))
        if ended >= need:
            return True
        if left_ms <= 0:
            return False


def _ended_of(engine: Handle, members: list[Transfer], ids: array[int], need: int, timeout_ms: int) -> int:
    address, n = ids.buffer_info()
    try:
        return engine._library.pybind_WaitMany(engine._id, address, n, need, timeout_ms)
    except RuntimeError as error:
        if all(transfer._outcome is not None for transfer in members):  # another thread has closed the engine
            return n
        raise translate(error) from None


def wait(
    transfers: Iterable[Transfer], timeout: float | str | None = None, return_when: str = ALL_COMPLETED
) -> tuple[set[Transfer], set[Transfer]]:
    """Waits until all (or the first, or the first that failed) have ended, or `timeout` seconds are over.

    Example:
        moves = [engine.write(region[i : i + 64], segment["kv"][i : i + 64]) for i in range(0, 640, 64)]
        done, pending = tent.wait(moves, timeout=10, return_when=tent.FIRST_COMPLETED)
        assert done
        for transfer in tent.as_completed(pending, timeout=10):
            transfer.result()

    Returns the sets (done, pending), and raises nothing for a time-out or a failed transfer.
    """
    if return_when not in (ALL_COMPLETED, FIRST_COMPLETED, FIRST_EXCEPTION):
        known = f"{ALL_COMPLETED}, {FIRST_COMPLETED} or {FIRST_EXCEPTION}"
        raise InvalidArgumentError(f"return_when is {return_when!r}: it must be {known}")
    everything = _list(transfers)
    _engines(everything)
    over = _native.instant(timeout)
    while True:
        pending = [transfer for transfer in everything if not transfer.done()]
        done = len(everything) - len(pending)
        if not pending or (done and return_when == FIRST_COMPLETED):
            break
        if return_when == FIRST_EXCEPTION and any(t._state() not in (PENDING, COMPLETED) for t in everything):
            break
        need = len(pending) if return_when == ALL_COMPLETED else 1
        if not _wait_some(pending, need, over):
            pending = [transfer for transfer in everything if transfer._state() <= PENDING]
            break
    left = set(pending)
    return set(everything) - left, left


def as_completed(transfers: Iterable[Transfer], timeout: float | str | None = None) -> Iterator[Transfer]:
    """Yields the transfers as they end. Raises the builtin TimeoutError when `timeout` seconds, counted from the call,
    are over; the others go on."""
    pending = list(dict.fromkeys(_list(transfers)))
    _engines(pending)
    over = _native.instant(timeout)
    return _as_completed(pending, over, timeout)


def _as_completed(pending: list[Transfer], over: float, timeout: float | str | None) -> Iterator[Transfer]:
    while pending:
        ended: list[Transfer] = []
        going: list[Transfer] = []
        for transfer in pending:
            (ended if transfer._state() > PENDING else going).append(transfer)
        pending = going
        if not ended and not _wait_some(pending, 1, over):
            raise TimeoutError(f"{len(pending)} transfers have not ended within {limit_of(timeout)}; they go on")
        yield from ended
