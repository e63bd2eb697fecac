# Written by tools/stubs.py from pybind/*.go. Integers, addresses and strings; a failure is a RuntimeError
# with a JSON object as its text. Times are milliseconds unless the name says otherwise.

from typing import Protocol

class Library(Protocol):
    """The extension module as a type. Closed engines and forked children hold one that only raises."""

    def pybind_Addresses(self, engine: int, segment: int, n: int, words: int, /) -> int:
        """Addresses prepares n ranges by address and returns their number as a grid. words is the address of two
        sequences of integers: the addresses and the lengths."""

    def pybind_Alive(self, engine: int, segment: int, timeout_ms: int, /) -> int:
        """Alive is 1 when the peer answers in its incarnation."""

    def pybind_Allocate(
        self,
        engine: int,
        size: int,
        name: str,
        location: str,
        permission: int,
        prefault: bool,
        hugepages: bool,
        peers: str,
        /,
    ) -> str:
        """Allocate maps and registers zeroed memory: JSON {"id","address","size","location"}."""

    def pybind_Ask(self, engine: int, segment: int, deadline: int, /) -> int:
        """Ask asks the peer of a segment for its regions. Moves do not wait for that: one that has to ask fails at
        once, with the arguments of Ask in its error. So Python waits as for other long calls, and a signal is handled
        meanwhile."""

    def pybind_Builder(self, engine: int, terms: int, /) -> int:
        """Builder begins a transfer that Start, Pages and Ranges put together. terms is the address of its terms:
        shapes have terms of their own, and these are only checked, so that a wrong one is refused here and not with the
        first shape."""

    def pybind_Cancel(self, engine: int, batch: int, task: int, /) -> int:
        """Cancel asks that a task (-1: all) end; it returns how many had not ended."""

    def pybind_Close(self, engine: int, timeout_ms: int, cancel: bool, /) -> str:
        """Close ends an engine: JSON {"held": [...]} names the memory that could not be taken back. A later call waits
        for the first one and returns the same. The page stays there until Forget."""

    def pybind_CloseGrid(self, engine: int, grid: int, /) -> int:
        """CloseGrid forgets a grid."""

    def pybind_CloseRegion(self, engine: int, region: int, timeout_ms: int, /) -> int:
        """CloseRegion ends remote access and returns when no peer can touch the bytes any more. It returns 1 when a
        driver or the kernel still may: its memory must stay where it is."""

    def pybind_CloseSegment(self, engine: int, segment: int, /) -> int:
        """CloseSegment closes a segment; closing 0 does nothing."""

    def pybind_CloseSegments(self, engine: int, segments: str, /) -> int:
        """CloseSegments closes segments by their numbers, a list in JSON."""

    def pybind_Commit(self, engine: int, builder: int, note: int, /) -> int:
        """Commit submits a builder's transfer, all or nothing, and returns its batch. note is the address of a
        notification, 0 for none. The builder stays if max_batches are alive: its owner may know some that nobody needs
        any more."""

    def pybind_Connect(self, engine: int, segment: int, timeout_ms: int, /) -> int:
        """Connect makes a segment ready for its first transfer."""

    def pybind_Discard(self, engine: int, builder: int, /) -> int:
        """Discard forgets a builder. One that was submitted is left alone."""

    def pybind_Disconnect(self, engine: int, who: str, timeout_ms: int, /) -> int:
        """Disconnect ends the access of peers and returns their number; see engine.Disconnect."""

    def pybind_Doctor(self, environment: str, /) -> str:
        """Doctor returns in JSON the versions of the engine, the findings of each transport and platform, and whether
        processes can share memory here. It starts nothing and needs no engine. The libraries of drivers, and the
        plug-ins that the environment's settings name, stay in the process. environment is that of Open."""

    def pybind_Drain(self, engine: int, address: int, capacity: int, /) -> int:
        """Drain takes up to capacity ids of watched batches that have ended. It keeps Python's lock: it never waits."""

    def pybind_EndMemory(self, engine: int, region: int, timeout_ms: int, /) -> int:
        """EndMemory closes a region of Allocate and unmaps it. Those of an engine that was forgotten are closed
        already."""

    def pybind_EventsClose(self, engine: int, fd: int, /) -> int:
        """EventsClose ends following; the descriptor is closed."""

    def pybind_EventsOpen(self, engine: int, /) -> int:
        """EventsOpen begins to follow the events of an engine, from the oldest one that is kept. It returns a file
        descriptor that is readable while some wait. It also names the follower."""

    def pybind_EventsTake(self, engine: int, fd: int, most: int, /) -> str:
        """EventsTake takes up to most events that a follower has not taken yet, oldest first: JSON {"lost",
        "events"}."""

    def pybind_EventsWait(self, engine: int, fd: int, timeout_ms: int, /) -> int:
        """EventsWait is 1 when events wait for a follower, after at most timeout."""

    def pybind_Explain(
        self,
        engine: int,
        op: int,
        priority: int,
        intent: int,
        policy: int,
        local: int,
        length: int,
        segment: int,
        region: int,
        offset: int,
        /,
    ) -> str:
        """Explain returns in JSON which routes a request would take, and why not the others."""

    def pybind_Export(self, engine: int, names: str, /) -> str:
        """Export returns a blob in base64; names is a JSON list or null for all named regions."""

    def pybind_FailedInto(self, engine: int, batch: int, address: int, capacity: int, /) -> int:
        """FailedInto writes the indexes of tasks that did not complete and returns how many there are, which may be
        more than fit."""

    def pybind_Failure(self, engine: int, batch: int, /) -> str:
        """Failure describes in JSON why a batch did not complete; code is "" if it did or has not ended."""

    def pybind_Faults(self, engine: int, /) -> str:
        """Faults returns the faults that are injected into an engine now, in the language."""

    def pybind_FaultsStruck(self, engine: int, /) -> str:
        """FaultsStruck lists in JSON the faults that were injected into an engine so far: text, hits, unused_ok of
        each."""

    def pybind_FenceRegion(self, engine: int, region: int, peer: str, timeout_ms: int, /) -> int:
        """FenceRegion returns when nothing that the peer began before can touch the region. An address, an ID or a
        pattern of identities names it, or several; "" is all."""

    def pybind_FindLease(self, engine: int, segment: int, token: str, timeout_ms: int, /) -> str:
        """FindLease returns in JSON the lease of a segment's peer that a token names, as Segment describes regions."""

    def pybind_Forget(self, engine: int, /) -> int:
        """Forget gives up the page of a closed engine and drops its number. Nobody may look at the page's address
        afterwards. A second time does nothing. Memory of Allocate that is left stays for FreeMemory."""

    def pybind_FreeBatch(self, engine: int, batch: int, /) -> int:
        """FreeBatch gives a batch back; it goes when its last task has ended."""

    def pybind_FreeBatches(self, engine: int, ids: int, n: int, /) -> int:
        """FreeBatches gives n batches back; those that are stale are left out."""

    def pybind_FreeMemory(self, engine: int, region: int, /) -> int:
        """FreeMemory unmaps memory of Allocate; its region is closed, nobody looks at it. It works on a closed engine
        too, and on one that was forgotten."""

    def pybind_Grid(self, engine: int, text: str, /) -> int:
        """Grid prepares pages of equal regions from JSON and returns its number."""

    def pybind_GridPages(self, engine: int, grid: int, /) -> int:
        """GridPages returns the number of pages in each region of a grid."""

    def pybind_HoldStream(self, engine: int, batch: int, stream: int, /) -> int:
        """HoldStream makes a stream of a device wait for the end of a batch. It returns the address of the word that
        has the batch's state then."""

    def pybind_Info(self, engine: int, /) -> str:
        """Info returns in JSON the facts that stay the same while the engine lives."""

    def pybind_InjectFaults(self, engine: int, text: str, /) -> int:
        """InjectFaults adds the faults of a text in the language of transports/faulty to those of an engine, or heals.
        It is refused unless the engine was opened with allow_faults."""

    def pybind_LeaseToken(self, engine: int, lease: int, /) -> str:
        """LeaseToken returns the token of a lease that has not ended."""

    def pybind_Logs(self, engine: int, most: int, /) -> str:
        """Logs takes up to most log records, oldest first, in JSON."""

    def pybind_Metrics(self, engine: int, /) -> str:
        """Metrics returns counters and gauges by name, in JSON."""

    def pybind_MetricsText(self, engine: int, /) -> str:
        """MetricsText returns them in Prometheus' text format."""

    def pybind_Move(
        self,
        engine: int,
        opcode: int,
        local: int,
        length: int,
        segment: int,
        region: int,
        offset: int,
        /,
    ) -> int:
        """Move starts a transfer of one request without further terms and returns its batch."""

    def pybind_NewBatch(self, engine: int, capacity: int, /) -> int:
        """NewBatch makes a batch for up to capacity tasks."""

    def pybind_NoteTake(self, engine: int, address: int, size: int, most: int, /) -> int:
        """NoteTake packs up to most notifications into size bytes. Each is u32 bytes of the record, u16 name bytes, u16
        peer bytes, u32 message bytes, u32 trace bytes, name, peer, message, trace, padding to 8. It returns their
        number, or minus the bytes needed for the first."""

    def pybind_NoteWait(self, engine: int, timeout_ms: int, /) -> int:
        """NoteWait returns how many notifications wait, after at most timeout."""

    def pybind_Notify(self, engine: int, segment: int, note: int, deadline: int, asks: bool, /) -> int:
        """Notify sends a notification alone; the batch ends when the peer has taken it. asks is that of Submit."""

    def pybind_Open(self, environment: str, arguments: str, keywords: str, name: str, /) -> int:
        """Open starts an engine with the settings of environment, arguments and keywords, and returns its number.
        Arguments and keywords are JSON text, "" for none; later ones win, key by key. environment is a JSON object of
        the variables that the program has now, "" for none: os.Getenv knows those of its start alone. Their values are
        in base64, since a path need not be UTF-8."""

    def pybind_OpenBlob(self, engine: int, address: int, size: int, /) -> int:
        """OpenBlob opens a blob that Export of a peer has made."""

    def pybind_OpenFiles(self, engine: int, text: str, timeout_ms: int, /) -> str:
        """OpenFiles opens files of this machine, all or none. It takes and returns JSON: a list of their absolute
        paths, flags and sizes; and a list of them as Segment describes each, with its number. Flags: 1 create, 2
        truncate, 4 read only, 8 durable, 16 cached."""

    def pybind_OpenLease(self, engine: int, of: int, token: str, timeout_ms: int, /) -> str:
        """OpenLease opens the lease of a segment's peer that a token names as a segment of its own. It returns in JSON
        the number of that segment and the size of the lease."""

    def pybind_OpenSegment(
        self,
        engine: int,
        target: str,
        identities: str,
        another: bool,
        wait: bool,
        timeout_ms: int,
        /,
    ) -> int:
        """OpenSegment opens "host:port", "host:port/region" or "file:///path"; "" is segment 0, our own memory. Another
        opens other engines alone, wait also those that start within the limit. Identities are those that the peer may
        have, as a JSON list, "" for any."""

    def pybind_Pages(self, engine: int, block: int, /) -> int:
        """Pages starts a transfer of pages from an argument block, which tent/_abi.py packs. It returns the transfer's
        batch, or adds them to a builder and returns 0."""

    def pybind_Peers(self, engine: int, /) -> str:
        """Peers lists the engines that have called, or that are open, in JSON."""

    def pybind_Progress(self, engine: int, /) -> int:
        """Progress turns the crank once and returns how much was found."""

    def pybind_Ranges(self, engine: int, block: int, /) -> int:
        """Ranges starts a transfer of ranges from an argument block, which tent/_abi.py packs. It returns the
        transfer's batch, or adds them to a builder and returns 0."""

    def pybind_Refuse(self, engine: int, /) -> int:
        """Refuse lets no batch take a call any more: later submits fail as those of a closed engine do. The page shows
        all others."""

    def pybind_RegionStanding(self, engine: int, region: int, /) -> str:
        """RegionStanding returns in JSON the place of an open region, and its state on each transport that moves its
        memory."""

    def pybind_Register(
        self,
        engine: int,
        address: int,
        size: int,
        read_only: bool,
        growable: bool,
        name: str,
        location: str,
        permission: int,
        peers: str,
        /,
    ) -> int:
        """Register registers memory and returns its region's id. Peers are patterns of identities as a JSON list, ""
        for all."""

    def pybind_ReloadSecurity(self, engine: int, allow: str, timeout_ms: int, /) -> int:
        """ReloadSecurity reads the files of mode mtls again, and returns 1 if something changed. Allow is a JSON list
        for security/allow, "" to leave it."""

    def pybind_RemapRegion(self, engine: int, region: int, offset: int, length: int, timeout_ms: int, /) -> int:
        """RemapRegion returns when peers reach the pages that are behind a range now, and nothing of before touches
        it."""

    def pybind_RenewLease(self, engine: int, lease: int, expires_ms: int, /) -> int:
        """RenewLease gives a lease another end, counted from now on; 0 is none."""

    def pybind_Segment(self, engine: int, segment: int, refresh: bool, /) -> str:
        """Segment describes an open segment in JSON; refresh asks the peer first."""

    def pybind_ServeMetrics(self, engine: int, address: str, /) -> str:
        """ServeMetrics serves an engine's metrics over HTTP at "host:port", and returns the address with the port
        taken."""

    def pybind_ShareRegion(
        self,
        engine: int,
        region: int,
        ranges: str,
        name: str,
        permission: int,
        peers: str,
        expires_ms: int,
        /,
    ) -> str:
        """ShareRegion gives peers parts of a region as a lease. It returns in JSON its id ("lease"), which CloseRegion
        and FenceRegion take, and its token. ranges is a JSON list of [offset, size]. Permission 0 is that of the
        region, or all that its buffer allows. It ends after expiresMs milliseconds, which may be over when this
        returns; 0 is no end."""

    def pybind_Start(self, engine: int, builder: int, requests: int, n: int, note: int, /) -> int:
        """Start starts a transfer of n packed requests and returns its batch, or adds them to a builder and returns 0.
        note is the address of a notification, 0 for none; the notification of a builder is given by Commit."""

    def pybind_StatusInto(self, engine: int, batch: int, first: int, n: int, address: int, /) -> int:
        """StatusInto writes two words a task for n tasks from first: state | dirty<<8 | transport<<16 | attempts<<32,
        and bytes."""

    def pybind_StopMetrics(self, engine: int, address: str, /) -> int:
        """StopMetrics ends the server at an address that ServeMetrics returned."""

    def pybind_Submit(self, engine: int, batch: int, requests: int, n: int, note: int, asks: bool, /) -> int:
        """Submit adds n packed requests to a batch, all or none, and returns the index of the first. note is the
        address of a notification, 0 for none. Without asks it fails where it would have to ask a peer, see Ask."""

    def pybind_Summary(self, engine: int, batch: int, /) -> str:
        """Summary describes a batch in JSON."""

    def pybind_SwapTransportForTest(self, engine: int, slot: str, name: str, /) -> int:
        """SwapTransportForTest puts another transport of this build into a slot of a fresh engine, under the slot's
        name; see engine.SwapTransportForTest. It is refused unless the engine was opened with allow_faults."""

    def pybind_Topology(self, engine: int, /) -> str:
        """Topology returns the NICs, memories and distances of the machine, in JSON."""

    def pybind_UnderWay(self, engine: int, /) -> int:
        """UnderWay returns the number of batches that have begun and not ended."""

    def pybind_Version(self) -> str:
        """Version of the wire protocol of this build."""

    def pybind_Wait(self, engine: int, batch: int, timeout_ms: int, /) -> int:
        """Wait returns the state of a batch when it has ended, or after timeout."""

    def pybind_WaitMany(self, engine: int, ids: int, n: int, need: int, timeout_ms: int, /) -> int:
        """WaitMany returns how many of n batches have ended, once need of them have or after timeout."""

    def pybind_Watch(self, engine: int, batch: int, /) -> int:
        """Watch asks that the end of a batch be pushed on the completion ring."""

def pybind_Addresses(engine: int, segment: int, n: int, words: int, /) -> int: ...
def pybind_Alive(engine: int, segment: int, timeout_ms: int, /) -> int: ...
def pybind_Allocate(
    engine: int,
    size: int,
    name: str,
    location: str,
    permission: int,
    prefault: bool,
    hugepages: bool,
    peers: str,
    /,
) -> str: ...
def pybind_Ask(engine: int, segment: int, deadline: int, /) -> int: ...
def pybind_Builder(engine: int, terms: int, /) -> int: ...
def pybind_Cancel(engine: int, batch: int, task: int, /) -> int: ...
def pybind_Close(engine: int, timeout_ms: int, cancel: bool, /) -> str: ...
def pybind_CloseGrid(engine: int, grid: int, /) -> int: ...
def pybind_CloseRegion(engine: int, region: int, timeout_ms: int, /) -> int: ...
def pybind_CloseSegment(engine: int, segment: int, /) -> int: ...
def pybind_CloseSegments(engine: int, segments: str, /) -> int: ...
def pybind_Commit(engine: int, builder: int, note: int, /) -> int: ...
def pybind_Connect(engine: int, segment: int, timeout_ms: int, /) -> int: ...
def pybind_Discard(engine: int, builder: int, /) -> int: ...
def pybind_Disconnect(engine: int, who: str, timeout_ms: int, /) -> int: ...
def pybind_Doctor(environment: str, /) -> str: ...
def pybind_Drain(engine: int, address: int, capacity: int, /) -> int: ...
def pybind_EndMemory(engine: int, region: int, timeout_ms: int, /) -> int: ...
def pybind_EventsClose(engine: int, fd: int, /) -> int: ...
def pybind_EventsOpen(engine: int, /) -> int: ...
def pybind_EventsTake(engine: int, fd: int, most: int, /) -> str: ...
def pybind_EventsWait(engine: int, fd: int, timeout_ms: int, /) -> int: ...
def pybind_Explain(
    engine: int,
    op: int,
    priority: int,
    intent: int,
    policy: int,
    local: int,
    length: int,
    segment: int,
    region: int,
    offset: int,
    /,
) -> str: ...
def pybind_Export(engine: int, names: str, /) -> str: ...
def pybind_FailedInto(engine: int, batch: int, address: int, capacity: int, /) -> int: ...
def pybind_Failure(engine: int, batch: int, /) -> str: ...
def pybind_Faults(engine: int, /) -> str: ...
def pybind_FaultsStruck(engine: int, /) -> str: ...
def pybind_FenceRegion(engine: int, region: int, peer: str, timeout_ms: int, /) -> int: ...
def pybind_FindLease(engine: int, segment: int, token: str, timeout_ms: int, /) -> str: ...
def pybind_Forget(engine: int, /) -> int: ...
def pybind_FreeBatch(engine: int, batch: int, /) -> int: ...
def pybind_FreeBatches(engine: int, ids: int, n: int, /) -> int: ...
def pybind_FreeMemory(engine: int, region: int, /) -> int: ...
def pybind_Grid(engine: int, text: str, /) -> int: ...
def pybind_GridPages(engine: int, grid: int, /) -> int: ...
def pybind_HoldStream(engine: int, batch: int, stream: int, /) -> int: ...
def pybind_Info(engine: int, /) -> str: ...
def pybind_InjectFaults(engine: int, text: str, /) -> int: ...
def pybind_LeaseToken(engine: int, lease: int, /) -> str: ...
def pybind_Logs(engine: int, most: int, /) -> str: ...
def pybind_Metrics(engine: int, /) -> str: ...
def pybind_MetricsText(engine: int, /) -> str: ...
def pybind_Move(
    engine: int,
    opcode: int,
    local: int,
    length: int,
    segment: int,
    region: int,
    offset: int,
    /,
) -> int: ...
def pybind_NewBatch(engine: int, capacity: int, /) -> int: ...
def pybind_NoteTake(engine: int, address: int, size: int, most: int, /) -> int: ...
def pybind_NoteWait(engine: int, timeout_ms: int, /) -> int: ...
def pybind_Notify(engine: int, segment: int, note: int, deadline: int, asks: bool, /) -> int: ...
def pybind_Open(environment: str, arguments: str, keywords: str, name: str, /) -> int: ...
def pybind_OpenBlob(engine: int, address: int, size: int, /) -> int: ...
def pybind_OpenFiles(engine: int, text: str, timeout_ms: int, /) -> str: ...
def pybind_OpenLease(engine: int, of: int, token: str, timeout_ms: int, /) -> str: ...
def pybind_OpenSegment(
    engine: int,
    target: str,
    identities: str,
    another: bool,
    wait: bool,
    timeout_ms: int,
    /,
) -> int: ...
def pybind_Pages(engine: int, block: int, /) -> int: ...
def pybind_Peers(engine: int, /) -> str: ...
def pybind_Progress(engine: int, /) -> int: ...
def pybind_Ranges(engine: int, block: int, /) -> int: ...
def pybind_Refuse(engine: int, /) -> int: ...
def pybind_RegionStanding(engine: int, region: int, /) -> str: ...
def pybind_Register(
    engine: int,
    address: int,
    size: int,
    read_only: bool,
    growable: bool,
    name: str,
    location: str,
    permission: int,
    peers: str,
    /,
) -> int: ...
def pybind_ReloadSecurity(engine: int, allow: str, timeout_ms: int, /) -> int: ...
def pybind_RemapRegion(engine: int, region: int, offset: int, length: int, timeout_ms: int, /) -> int: ...
def pybind_RenewLease(engine: int, lease: int, expires_ms: int, /) -> int: ...
def pybind_Segment(engine: int, segment: int, refresh: bool, /) -> str: ...
def pybind_ServeMetrics(engine: int, address: str, /) -> str: ...
def pybind_ShareRegion(
    engine: int,
    region: int,
    ranges: str,
    name: str,
    permission: int,
    peers: str,
    expires_ms: int,
    /,
) -> str: ...
def pybind_Start(engine: int, builder: int, requests: int, n: int, note: int, /) -> int: ...
def pybind_StatusInto(engine: int, batch: int, first: int, n: int, address: int, /) -> int: ...
def pybind_StopMetrics(engine: int, address: str, /) -> int: ...
def pybind_Submit(engine: int, batch: int, requests: int, n: int, note: int, asks: bool, /) -> int: ...
def pybind_Summary(engine: int, batch: int, /) -> str: ...
def pybind_SwapTransportForTest(engine: int, slot: str, name: str, /) -> int: ...
def pybind_Topology(engine: int, /) -> str: ...
def pybind_UnderWay(engine: int, /) -> int: ...
def pybind_Version() -> str: ...
def pybind_Wait(engine: int, batch: int, timeout_ms: int, /) -> int: ...
def pybind_WaitMany(engine: int, ids: int, n: int, need: int, timeout_ms: int, /) -> int: ...
def pybind_Watch(engine: int, batch: int, /) -> int: ...
