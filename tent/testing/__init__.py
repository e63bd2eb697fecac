"""Tests of programs that use tent: engines in several processes, faults, and a byte oracle.

The pytest plug-in comes with tent; there is nothing to import in conftest.py. Its fixtures:

| fixture | gives |
|---|---|
| `tent_engine(**settings)` | an Engine of this process |
| `tent_pair(rails=2, **settings)` | a Pair: `.engine` here, `.peer` in a process of its own, `.segment` |
| `tent_cluster(3, rails=2, **settings)` | a Cluster: `.engine` here, `.peers`, `.segments` |
| `tent_faults` | Faults of the engines here that are open; `tent_faults.peer` of those over there |
| `tent_oracle` | an Oracle: regions with every byte known |
| `tent_seed` | the seed of all that; shown on failure, TENT_SEED repeats it |
| `tent_leak_check` | override it to return False where a test may leave descriptors or processes behind |

    def test_decode_survives_a_dead_rail(tent_pair, tent_faults, tent_oracle):
        pair = tent_pair(rails=2)                       # two engines in two processes, two rails on loopback addresses
        src, dst = tent_oracle.regions(pair, 64 << 20)  # position-dependent pattern, guard bands
        transfer = pair.engine.write(src, dst)
        tent_faults.rail(1).blackhole(after_bytes=8 << 20)
        assert transfer.result(timeout=10) == 64 << 20
        assert pair.engine.metrics()["tent_rail_errors_total"] > 0
        tent_oracle.check()                             # every byte right, nothing outside touched, nothing lands later

    def test_a_checksum_finds_what_changed_on_its_way(tent_pair, tent_faults, tent_oracle):
        pair = tent_pair()
        src, dst = tent_oracle.regions(pair, 1 << 20)
        tent_faults.corrupt(count=1)
        pair.engine.write(src, dst, integrity="crc32c").result(timeout=10)  # the slice was sent again
        tent_oracle.check()

    def test_the_peer_is_killed_in_mid_transfer(tent_pair, tent_oracle):
        pair = tent_pair()
        src, dst = tent_oracle.regions(pair, 64 << 20)
        transfer = pair.engine.write(src, dst)
        pair.peer.kill()
        assert transfer.exception(timeout=10).peer == pair.peer.address

Each rail of a pair carries 256 MiB a second, so that a transfer lasts long enough to be hit in the middle on any
machine; `rate=None` takes the limit away. It is no fault: it is counted apart, and heal() leaves it.

| faults of slices | |
|---|---|
| `reject()` | they fail at once, and nothing is sent |
| `lose()` | delivered, and reported as failed |
| `drop()` | lost on their way |
| `drop_completion()` | delivered, and nothing comes back |
| `delay("20ms")` | reported so much later |
| `duplicate()` | delivered twice |
| `reorder(3)` | reported behind the next ones |
| `truncate()` | half of each is delivered |
| `corrupt()` | a byte of each changes |

| faults of rails, of calls | |
|---|---|
| `blackhole()` | nothing is sent any more, nothing comes back |
| `slow("10MiB")` | bytes a second |
| `down()`, `reset()` | it goes down; it breaks once |
| `fail_register()`, `fail_attach()` | registering memory, attaching to a peer fails |
| `control_down()` | the control plane breaks and refuses |

| selection | |
|---|---|
| `rail(0)` | one rail of each peer, numbered from 0; an index beyond the pair's rails is an error |
| `op("WRITE")`, `priority(tent.PRIO_LOW)`, `transport("tcp")`, `to(address)` | these slices alone |
| `nth(3)`, `every(10)` | the third of them; each tenth |
| `peer` | faults of the other end |

By keyword they take `rate`, `count`, `after_bytes`, `after_slices`, `code`, `scope`, `side`, `silent`, `unused_ok`.
One that has never struck when the test ends fails the test, since it has tested nothing; `unused_ok=True` allows it.
Each injection counts for itself, and passes if one of the engines that got it has ended: it may have struck there.
Where no engine is open, a fault is an error.
`heal()` ends faults, `seed(n)` sets their chance, `inject(text)` takes the language below.

Without pytest the same things are classes: `with Pair(rails=4) as pair: pair.faults.rail(2).down()`. Faults of any
engine that was opened with `allow_faults=True` are `Faults(engine)`, or texts: `inject(engine, "rail=1 delay=2ms")`.
The texts are those of TENT_FAULTS and of Go's `transports/faulty`; the documentation of that package describes the
language.
"""

from __future__ import annotations

from .._lazy import attach

# Module to its public names. Type checkers read __init__.pyi, which tools/stubs.py writes from this table.
_PUBLIC = {
    "faults": "Faults inject injected struck swap_transport_for_test",
    "memory": "Memory pattern",
    "oracle": "Oracle",
    "pair": "Cluster Pair",
    "peer": "PeerProcess There",
}
__all__, __getattr__, __dir__ = attach(__name__, _PUBLIC)
