package transport

import (
	"context"
	"net/netip"

	"github.com/tent-engine/tent/gocore/clock"
	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/mem"
)

// Optional interfaces, looked up once at Open. Those for waiters are in wait.go.
type (
	// Inliner is a transport that can carry out a little on the caller's thread faster than the core can think about
	// it.
	Inliner interface {
		// Inline carries out all of the slices, of one rail, before it returns, and keeps no pointer to them. False
		// means that some may not have been carried out: the rail's generation is stale, a region was revoked, a higher
		// class is waiting. The caller then submits all of them the usual way, and errors come from there.
		Inline([]*Slice) bool
	}

	// Filer is a transport between memory and files of this machine (Info.Files). Its links are files: Attach takes the
	// Peer that the engine made for one, Import the descriptor that OpenFile returned; RemoteKey is the open file.
	Filer interface {
		// OpenFile checks the path against the allowed roots, and makes, grows or truncates the file as asked. It
		// returns its card, which Import of every Filer reads (FileCard.Encode). It leaves nothing open. Errors:
		// NotFound, PermissionDenied (also a read-only file system and a path outside of the roots), InvalidArgument
		// (not a regular file, a wrong spec), NoSpace, StorageError.
		OpenFile(ctx context.Context, spec FileSpec) (FileCard, error)
		// Sync does not block. It calls done, exactly once and from any goroutine, when everything that was completed
		// on the file before is on stable storage (fdatasync), and so is the file's name, or with the reason why it is
		// not; also when the link is detached or the transport closed meanwhile. After a failure the fate of those
		// bytes is unknown.
		Sync(link Link, key RemoteKey, done func(*errs.Error))
	}

	// Allocator is a transport that brings memory of its own.
	Allocator interface {
		// Allocate returns zeroed memory; Fd of the region is set where peers can map it. After an error the engine
		// asks elsewhere, but for NoSpace: the place is full that a setting names.
		Allocate(Allocation) (mem.Region, error)
		Free(mem.Region) error
	}

	// Remapper is a transport that holds pages of registered memory: a NIC has pinned them, or peers map them. The
	// others reach memory by its address, and see pages that change by themselves.
	Remapper interface {
		// Remap says that other pages, or none, are behind a range of a region from now on; the key stays. The engine
		// has fenced the region. When it returns, no slice reaches the old pages. Slices that need bytes without pages
		// fail, as AddressNotRegistered, and no others do. Peers that hold a descriptor of before get the new one by
		// Host.Describe; their slices by the old one are refused as errs.Replaced.
		Remap(ctx context.Context, key LocalKey, now Remapped) error
	}

	// Unsharing is a transport that takes some regions for its own end of transfers alone.
	Unsharing interface {
		// Unshared returns why peers cannot reach a registered region over this transport, nil if they can.
		Unshared(LocalKey) error
	}

	// Notifier carries small messages to a peer, each acknowledged by the peer's Sink.Notified. A message that Notify
	// takes has one call of done, from any goroutine, also before Notify returns: nil when the peer has taken it. One
	// that Notify refuses, by false, has none, also where the rail breaks meanwhile. One for which the peer has no room
	// fails as TooManyRequests: the caller knows whether somebody still waits for it. A message that was refused or
	// failed may be sent again by another way; messages carry their own sequence, so a duplicate does no harm.
	Notifier interface {
		Notify(link Link, message []byte, done func(*errs.Error)) bool
	}

	// Prober asks whether a rail works, for rails that carry nothing now. The question goes the way of the highest
	// class and has no payload. done is called once, from any goroutine, within a second.
	Prober interface {
		Probe(rail Rail, done func(rtt clock.Time, err *errs.Error))
	}

	// Witness is a transport that knows more of a rail than its completions say. A core that doubts a rail asks before
	// it acts: a slice of a megabyte says nothing for 20 ms on 50 MB/s, its acknowledged packets do.
	Witness interface {
		// Heard returns the signs of life of a rail's other end, as exactly as the system accounts for them; none for a
		// stale rail. It costs a microsecond a lane, and does not block; not for every slice.
		Heard(rail Rail) Signs
	}

	// Disconnecter is a transport that keeps connections of a peer for which its owner has no further use.
	Disconnecter interface {
		// Disconnect ends the lanes and attachments of a peer that reach us, and does not wait for it. The engine
		// refuses its calls meanwhile, and revokes its access to each region afterwards.
		Disconnect(peer ID)
	}

	// Renamer is a transport that asks the rules of regions (mem.Peers) after the handshake of a peer, too.
	Renamer interface {
		// Rename replaces the identity of a peer's lanes and attachments. The engine revokes its access to the regions
		// that are not for the new one afterwards.
		Rename(peer Peer)
	}

	// Visited is a transport that keeps something open for peers at our end.
	Visited interface {
		// Visitors returns the peers with lanes or attachments that reach us; one may come more than once.
		Visitors() []ID
	}

	// Reacher is a transport that can tell by the addresses on which a peer listens that it cannot reach it.
	Reacher interface {
		// Reach returns why no rail to the peer is possible, and the setting that would help; nil if one may be. It
		// asks nobody.
		Reach(peer Peer, addresses []netip.AddrPort) error
	}

	// Flusher is a transport that is acknowledged before its WRITEs are visible, and flushes for rule m. Others need no
	// flush: where a processor copies, or a kernel does, its acknowledgement comes after the bytes.
	Flusher interface {
		// Flushes returns how many it has sent.
		Flushes() uint64
	}

	// EpochReader is a transport that finds the epochs of its peers in memory; it does not call Fenced.
	EpochReader interface {
		// Epoch returns the newest epoch of a link's peer, 0 if it is not known. Called for each submission, it costs
		// some nanoseconds and does not block.
		Epoch(Link) Epoch
	}

	// Injector is a decorator that makes its transport fail on purpose; the metrics tell. See Outermost.
	Injector interface {
		// Injected returns how many faults are in force and how often one has struck. Ambient ones are counted apart:
		// they belong to the stage of a test and not to its subject.
		Injected() (rules int, struck, ambient uint64)
	}

	// Explainer adds to engine.explain and tent doctor.
	Explainer interface {
		Explain(Link) string
	}
)
