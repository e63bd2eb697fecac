"""The reflexes of Python people work, or are refused at once with the cure."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextvars
import io
import pydoc
import queue
import sys
import threading
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import tent
from tent.testing import Pair

np = pytest.importorskip("numpy")  # one interpreter of the suite has it

INVALID = tent.InvalidArgumentError
LIMIT = 20  # seconds


class Slow(NamedTuple):
    """A pair, and the operands that are moved over it."""

    pair: Pair
    region: tent.Region
    remote: tent.RemoteRegion

    def write(self, size: int = 1 << 20) -> tent.Transfer:
        self.pair.faults.heal()
        return self.pair.engine.write(self.region[0:size], self.remote[0:size])

    def late(self) -> tent.Transfer:
        """One that does not end before it is cancelled."""
        self.pair.faults.blackhole()
        return self.pair.engine.write(self.region, self.remote)


@pytest.fixture
def slow() -> Any:
    with Pair(rate=None) as pair:
        pair.peer.region("kv", 4 << 20, seed=1)
        pair.segment.refresh()
        yield Slow(pair, pair.engine.allocate("4MiB"), pair.segment["kv"])


# Segments


def test_a_segment_is_a_collection_of_regions(engines: Callable[..., tent.Engine]) -> None:
    owner, engine = engines(), engines()
    with owner.allocate(4096, name="kv") as kv, engine.open(owner.address) as peer:
        assert "kv" in peer and "vk" not in peer and 7 not in peer
        assert list(peer) == ["kv"] and len(peer) == 1
        with owner.allocate(8192, name="late"):
            assert "late" in peer  # the peer is asked when a name is not known
            assert sorted(peer) == ["kv", "late"] and len(peer) == 2
        with engine.open(f"{owner.address}/kv") as only:
            assert len(only) == kv.size
            for wrong in (lambda: "kv" in only, lambda: list(only)):
                with pytest.raises(INVALID, match=r"is a single region; slice it"):
                    wrong()
    with engine.open(engines().address) as empty:
        assert len(empty) == 0 and list(empty) == [] and empty


# Arrays


def test_a_region_becomes_an_array_that_keeps_the_memory(engine: tent.Engine) -> None:
    region = engine.allocate("64KiB", name="kv")
    layers = region.array("float16", (2, 16, -1))
    assert layers.shape == (2, 16, 1024) and layers.dtype == np.float16
    layers[1] = 2.5
    flat, packed = region.array(), np.from_dlpack(region)
    assert flat.shape == packed.shape == (65536,) and flat.dtype == packed.dtype == np.uint8
    assert region.__dlpack_device__() == (1, 0)
    assert bytes(region.view) == layers.tobytes() == flat.tobytes() == packed.tobytes()
    region.close()
    engine.close()
    del region
    layers += 1  # the memory is there for as long as one of them is
    assert packed.tobytes() == flat.tobytes() == layers.tobytes()
    assert (layers[1] == 3.5).all()


def test_an_array_of_a_wrong_shape_is_refused(engine: tent.Engine) -> None:
    with engine.allocate(4096, name="kv") as region:
        with pytest.raises(INVALID, match=r"kv.* as 2048 elements of float16: cannot reshape"):
            region.array("float16", (3, 5))


def test_read_only_memory_stays_read_only(engine: tent.Engine) -> None:
    with engine.register(b"constant") as region:
        assert not region.array().flags.writeable
        with pytest.raises(ValueError):
            region.array()[0] = 1


def test_a_region_becomes_a_tensor(engine: tent.Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    with engine.allocate(4096) as region:
        monkeypatch.setitem(sys.modules, "torch", None)
        with pytest.raises(INVALID, match=r"tensor\(\) needs torch, which is not installed; region\.view"):
            region.tensor("float16")
        # A stand-in with the three names of torch that tent uses, where torch itself is not there.
        stand_in: Any = types.ModuleType("torch")
        stand_in.dtype = np.dtype
        stand_in.float16 = np.dtype("float16")
        stand_in.frombuffer = lambda view, dtype: np.frombuffer(view, dtype=dtype)
        monkeypatch.setitem(sys.modules, "torch", stand_in)
        tensor = region.tensor("float16", (2, -1))
        tensor[:] = 1.5
        assert tensor.shape == (2, 1024) and (region.array("float16") == 1.5).all()
        assert region.tensor(stand_in.float16).shape == (2048,)
        with pytest.raises(INVALID, match="torch has no dtype 'half16'"):
            region.tensor("half16")


def test_torch_takes_a_region(engine: tent.Engine) -> None:
    torch = pytest.importorskip("torch")
    with engine.allocate(4096) as region:
        packed, shaped = torch.from_dlpack(region), region.tensor(torch.float16, (2, -1))
        shaped[:] = 1.5
        assert packed.dtype == torch.uint8 and (packed.view(torch.float16) == 1.5).all()


def test_objects_without_bytes_are_refused(engine: tent.Engine) -> None:
    with pytest.raises(INVALID, match=r"references to Python objects.*an array of numbers"):
        engine.register(np.array([object(), "text"], dtype=object))


# Waiting


def test_asyncio_wait_takes_transfers(slow: Slow) -> None:
    async def all_of_them() -> None:
        transfers = [slow.write(), slow.write()]
        done, pending = await asyncio.wait_for(asyncio.wait(transfers), LIMIT)
        results = {await t if isinstance(t, asyncio.Future) else t.result() for t in done}
        assert results == {1 << 20} and len(done) == 2 and not pending

    async def the_first() -> None:
        fast = slow.write(64)
        await fast
        late = slow.late()
        waiting = asyncio.wait([fast, late], return_when=asyncio.FIRST_COMPLETED)
        done, pending = await asyncio.wait_for(waiting, LIMIT)
        assert len(done) == 1 and len(pending) == 1
        assert late.cancel()
        done, pending = await asyncio.wait_for(asyncio.wait([late], return_when=asyncio.FIRST_EXCEPTION), LIMIT)
        assert late.cancelled() and not fast.cancelled() and len(done) == 1

    async def a_time_out_and_one_that_has_ended() -> None:
        late = slow.late()
        done, pending = await asyncio.wait([late], timeout=0.01)
        assert not done and len(pending) == 1
        late.cancel()
        await asyncio.wait_for(asyncio.wait([late]), LIMIT)
        await asyncio.wait_for(asyncio.wait([late]), LIMIT)

    for case in (all_of_them, the_first, a_time_out_and_one_that_has_ended):
        asyncio.run(case())


def test_the_rest_of_asyncio_takes_transfers(slow: Slow) -> None:
    async def rest() -> None:
        assert await asyncio.gather(slow.write(64), slow.write(64)) == [64, 64]
        assert [await t for t in asyncio.as_completed([slow.write(64), slow.write(64)], timeout=LIMIT)] == [64, 64]
        assert await asyncio.shield(slow.write(64)) == await asyncio.wait_for(slow.write(64), LIMIT) == 64
        assert await asyncio.create_task(slow.write(64).result_async()) == 64
        late = slow.late()
        with pytest.raises(TypeError, match=r"coroutine was .* got <Transfer .*; a task takes result_async\(\)>"):
            await asyncio.create_task(late)  # type: ignore[arg-type]
        with pytest.raises(TimeoutError, match="has not ended within 10 ms; it goes on"):
            await late.result_async("10 ms")
        assert not late.done() and late.cancel()
        with pytest.raises(tent.TransferCanceledError):
            await late.result_async(LIMIT)
        if sys.version_info >= (3, 11):
            async with asyncio.TaskGroup() as group:
                with pytest.raises(TypeError, match="a task takes result_async"):
                    group.create_task(late)  # type: ignore[arg-type]
                tasks = [group.create_task(slow.write(64).result_async(LIMIT)) for _ in range(3)]
            assert [task.result() for task in tasks] == [64, 64, 64]

    asyncio.run(rest())


def test_an_engine_that_closes_wakes_asyncio_wait(slow: Slow) -> None:
    async def close_meanwhile() -> None:
        late = slow.late()
        waiting = asyncio.create_task(asyncio.wait([late]))  # type: ignore[var-annotated,type-var]
        await asyncio.sleep(0)
        await slow.pair.engine.aclose(timeout=0)
        done, _ = await asyncio.wait_for(waiting, LIMIT)
        assert len(done) == 1 and late.cancelled()
        await asyncio.wait_for(asyncio.wait([late]), LIMIT)  # also when it was settled before

    asyncio.run(close_meanwhile())


def test_callbacks_can_be_removed_and_have_contexts(slow: Slow) -> None:
    ran: list[tuple[str, str]] = []
    ended = threading.Event()
    variable = contextvars.ContextVar("variable", default="none")
    context = contextvars.copy_context()
    context.run(variable.set, "own")
    late = slow.late()

    def removed(transfer: tent.Transfer) -> None:
        ran.append(("removed", ""))

    def kept(transfer: tent.Transfer) -> None:
        ran.append((threading.current_thread().name, variable.get()))
        if len(ran) == 2:
            ended.set()

    late.add_done_callback(removed)
    late.add_done_callback(removed)
    assert late.remove_done_callback(removed) == 2
    assert late.remove_done_callback(removed) == 0
    late.add_done_callback(kept)
    late.add_done_callback(kept, context=context)
    late.cancel()
    assert ended.wait(LIMIT)
    assert sorted(ran) == [("tent", "none"), ("tent", "own")]


def test_what_waits_for_executors_is_refused_with_the_cure(engine: tent.Engine) -> None:
    with engine.allocate(4096) as region:
        transfer = engine.write(region[0:64], region[64:128])
        with pytest.raises(TypeError, match=r"tent\.wait\(\)"):
            concurrent.futures.wait([transfer], timeout=LIMIT)  # type: ignore[list-item]
        with pytest.raises(TypeError, match=r"tent\.wait\(\)"):
            list(concurrent.futures.as_completed([transfer], timeout=LIMIT))  # type: ignore[list-item]
        for call in (tent.wait, tent.as_completed):
            with pytest.raises(INVALID, match=r"not one; give a list, or use its own wait\(\)"):
                call(transfer)  # type: ignore[operator]
        with pytest.raises(INVALID, match=r"neither true nor false; ask done\(\)"):
            bool(transfer)
        with pytest.raises(INVALID):
            assert transfer
        transfer.result(LIMIT)


# Streams


def test_notifications_without_waiting(engines: Callable[..., tent.Engine]) -> None:
    owner, engine = engines(), engines()
    with pytest.raises(queue.Empty, match="no notification has come"):
        owner.notifications.get_nowait()
    with pytest.raises(TimeoutError):
        owner.notifications.get_nowait()
    with engine.open(owner.address) as peer:
        engine.notify(peer, "one", "1").result(LIMIT)
        assert owner.notifications.get_nowait().name == "one"
        engine.notify(peer, "two", "2").result(LIMIT)

        async def get() -> tent.Notification:
            with pytest.raises(TimeoutError, match="no notification came within 10 ms"):
                await engine.notifications.get_async("10 ms")
            return await owner.notifications.get_async(timeout="20 s")

        assert asyncio.run(get()).name == "two"
    kinds = []
    with engine.events() as events, pytest.raises(queue.Empty):
        while True:
            kinds.append(events.get_nowait().kind)
    assert "segment_opened" in kinds


# Mistakes


def test_first_guesses_name_the_cure(engine: tent.Engine) -> None:
    with pytest.raises(INVALID, match=r"'decode-0' cannot be read: .*; a name is Engine\(name='decode-0'\)"):
        tent.Engine("decode-0")
    for path in ("/tmp/x", "./x", "~/x"):
        with pytest.raises(INVALID, match=r"is no address; a file is file:///path or a pathlib\.Path"):
            engine.open(path)
    with engine.allocate(4096, name="kv") as region:
        for hint, text in (
            ("quic", "names no transport; known: .*shm, .*tcp"),
            ("rdma", "was asked for and cannot carry this: .*(no RDMA device|is not installed)"),
            ("gds", r"was asked for and cannot carry this: transports/gds/enable is false"),
            ("ub", r"not open in this engine \(.*; open are .*shm, .*tcp"),
        ):
            with pytest.raises(INVALID, match=text):
                engine.write(region[0:64], region[64:128], hint=hint)
    with engine.register(b"constant", name="weights") as fixed, engine.allocate(8) as source:
        with pytest.raises(INVALID, match=r"<weights\[0:8\] 8 B> is read-only: a READ cannot be stored there"):
            engine.read(fixed, source)


def test_one_region_is_exported_as_several_are(engines: Callable[..., tent.Engine]) -> None:
    near, far = engines(), engines()
    with far.allocate(64, name="kv") as kv, far.allocate(64, name="other"):
        for chosen in ("kv", kv, ["kv"], [kv]):
            with near.open(far.export(chosen)) as peer:
                assert list(peer) == ["kv"]


def test_a_misspelled_attribute_is_an_error(engines: Callable[..., tent.Engine]) -> None:
    owner, engine = engines(), engines()
    with owner.allocate(4096, name="kv") as region, engine.open(owner.address) as peer, engine.events() as events:
        grid, transfer = owner.pages(region, 64), owner.write(region[0:64], region[64:128])
        with owner.batch() as batch:
            things = [
                *(owner, region, region[0:64], peer, peer["kv"], peer["kv"][0:64], grid, transfer, batch),
                *(events, owner.notifications, owner.traffic()),
            ]
            for thing in things:
                with pytest.raises(AttributeError):
                    thing.nmae = 1
        transfer.result(LIMIT)


# Looking


def test_representations_name_hosts_and_regions(engines: Callable[..., tent.Engine], tmp_path: Path) -> None:
    owner, engine = engines(name="decode-0"), engines()
    with owner.allocate(4096, name="kv") as region, engine.open(owner.address) as peer:
        at = owner.address
        assert repr(owner) == f"<Engine 'decode-0' at {at}>" and repr(engine) == f"<Engine {engine.address}>"
        assert repr(region[64:128]) == "<kv[64:128] 64 B>"
        assert repr(peer) == f"<Segment {at}: kv 4.0 KiB>"
        assert repr(peer["kv"][64:128]) == f"<kv[64:128] 64 B of {at}>"
        assert repr(peer.memory(0x1000, 64)) == f"<0x1000 64 B of {at}>"
        assert repr(owner.notifications) == f"<Notifications of 'decode-0' at {at}>"
        with peer.pages(peer["kv"], 64) as theirs, owner.pages(region, 64) as ours, owner.batch() as batch:
            assert repr(theirs) == f"<Grid remote of {at}, 64 pages of 64 bytes in 1 regions>"
            assert repr(ours) == "<Grid local 64 pages of 64 bytes in 1 regions>"
            batch.write(region[0:64], region[64:128])
            assert repr(batch) == f"<Batch of 1 requests at {at}>"
        more = [owner.allocate(64, name=f"more-{i}") for i in range(6)]
        peer.refresh()
        assert repr(peer).endswith("3 more>")
        for one in more:
            one.close()
    with engine.open(engine.address) as nobody:
        assert repr(nobody) == f"<Segment {engine.address}: no named regions>"
    with engine.open(tmp_path / "file", create=True, size="8K") as file:
        assert repr(file) == f"<Segment file://{tmp_path}/file: 8.0 KiB>"


def test_the_name_of_a_peers_region_cannot_steer_the_terminal(engines: Callable[..., tent.Engine]) -> None:
    owner, engine = engines(), engines()
    name, shown = "kv\x1b[2J\n", r"kv\x1b[2J\n"
    with owner.allocate(64, name=name) as region, engine.open(owner.address) as peer, engine.allocate(64) as local:
        remote = peer[name]
        for text in (repr(peer), repr(remote), repr(remote[0:8])):
            assert shown in text and text.isprintable()
        region.close()
        with pytest.raises(tent.TransferError) as ended:
            engine.write(local, remote).result(LIMIT)
        assert f'region "{shown}"' in str(ended.value) and str(ended.value).isprintable()


def test_notebooks_show_tables(engines: Callable[..., tent.Engine]) -> None:
    engine = engines(name="<script>", log_level="error")
    with engine.allocate(4096, name="kv") as region, engine.open("") as own, engine.events() as events:
        engine.write(region[0:64], own["kv"][64:128]).result(LIMIT)
        plan = engine.explain(region[0:64], own["kv"][0:64])
        tables = {
            "traffic": engine.traffic()._repr_html_(),
            "events": events._repr_html_(),
            "plan": plan._repr_html_(),
            "config": engine.config._repr_html_(),
        }
        for table in tables.values():
            assert table.startswith("<table>") and table.endswith("</table>") and "<script>" not in table
        assert "shm" in tables["traffic"] and "rail_up" in tables["events"] and "moves bytes between" in tables["plan"]
        assert "&lt;script&gt;" in tables["config"] and "log_level" in tables["config"]
        assert "log_level" in engine.config and engine.config["log_level"].value == "error"
        assert events.drain(), "the table has taken the events"
        assert plan["taken"] == "shm" and str(plan).splitlines()[0].startswith("1  shm")
    assert events._repr_html_().startswith("<table>")  # closed


def test_help_shows_what_the_first_program_needs() -> None:
    out = io.StringIO()
    pydoc.Helper(output=out).help(tent.Engine)
    text = pydoc.plain(out.getvalue())
    for name in ("address", "name", "notifications", "closed", "config"):
        assert f"\n |  {name}\n |      " in text, name
    assert "forked" not in text and "_cut_off" not in text
