// Package transport is the contract between the core and a way to move bytes. Transports move slices; the core decides
// everything else: splitting, spraying, retry, failover, QoS, time-outs and status exist once, in gocore. A transport
// never sees a request, a batch or a priority.
//
// # Rules
//
// Each is a test of transports/transporttest, which every transport runs.
//
//	a  Submit takes a prefix and leaves the rest untouched; after a short one, Sink.Ready comes.
//	b  Every accepted slice gets exactly one completion, also when it fails at once. A slice of a stale rail
//	   generation is not accepted, atomically with Fence: a thread that slept between the core's step and Submit
//	   cannot slip a slice past a fence.
//	c  After its completion nobody writes the slice's destination or reads its local source. A proof that takes time
//	   at once (a flushed queue pair, a closed lane, a stream that must drain) delays the completion.
//	d  Complete may come from any goroutine, even before Submit returns.
//	e  An error carries scope and side. Collateral says that a neighbour was meant.
//	f  After Close no goroutine, file descriptor, mapping or pinned page is left. Exempt are those that a vendor's
//	   library opens once and keeps for the process, as a driver's device files; the transport's package doc lists them.
//	g  Missing hardware is a reason that Factory.Check returns, not a crash.
//	h  Attach returns at once; rails come and go by Sink. A dial has a limit.
//	i  A reader never waits for a write, a writer never waits for a reader; a peer's requests to a responder are
//	   credited and bounded, and nothing a peer sends makes memory grow beyond its credit.
//	j  Numbers are reused: a transport's tables grow with the entries that are there at once, not with all that ever
//	   were. A call that names a link that has ended is refused and counted, also when another link has its index by
//	   now.
//	k  A task that began before a fence of its remote region moves no byte after it, whichever way it takes: Epoch.
//	l  A key that was forgotten never names another region of its link. A slice that names a replaced or a forgotten
//	   key moves no byte, and fails as Replaced or as the region's end demands: see Host.Describe.
//	m  A WRITE that has completed is acknowledged and visible to everybody that hears of it afterwards, by any way.
//	   A transport that is acknowledged earlier flushes first, behind the last WRITE of a posting. Nothing is promised
//	   about the order of WRITEs, nor about that of completions.
//
// # One slice, from left to right
//
//	core                      transport                          peer
//	Submit([s]) ------------> accepted: owns *s
//	                          bytes move ----------------------> checks key, offset, permission
//	Withdraw([s]) ----------> drops unsent slices, asks -----> marks void, waits for a copy under way
//	            <------------ Complete{s, nil | Error}   <------ acknowledges
//	never touches s again     never touches s again
package transport

import (
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"time"

	"github.com/tent-engine/tent/gocore/clock"
	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/mem"
)

// Op is the direction of a slice, with upstream's numbers.
type Op uint8

// Operations: Read moves remote to local, Write moves local to remote.
const (
	Read  Op = 0
	Write Op = 1
)

func (o Op) String() string { return [...]string{"READ", "WRITE"}[o&1] }

// LocalKey and RemoteKey are a transport's own names of a registered region and of an imported one. Both are opaque to
// the core, never 0, and cheap to use on the hot path (an index, an rkey).
type (
	LocalKey  uint64
	RemoteKey uint64
)

// Descriptor is versioned opaque bytes by which a peer's same transport can use a region. It holds no secret.
type Descriptor []byte

// DescriptorMax bounds its bytes. A region with a longer one is not shared over that transport.
const DescriptorMax = 1 << 16

// Link is a transport's handle of one attached peer: generation<<32 | index+1 of a slot in the transport's table; 0 is
// none. An index is used again once its link is detached, a generation is not: a call that names a link that has ended
// is refused, and counted (Transport.Stale).
type Link uint64

// Index is the link's slot. Tables that mirror a transport's links by it stay as small as the transport's own.
func (l Link) Index() uint32 { return uint32(l) - 1 }

// Generation keeps the links of one slot apart. It is never 0.
func (l Link) Generation() uint32 { return uint32(l >> 32) }

// Valid reports whether the number may be a link's: neither half of it is 0.
func (l Link) Valid() bool { return uint32(l) != 0 && l.Generation() != 0 }

// String returns index.generation, "none" for 0.
func (l Link) String() string {
	if l == 0 {
		return "none"
	}
	return fmt.Sprintf("%d.%d", l.Index(), l.Generation())
}

// Rail names one (local end, remote end) path of a link and the generation in which it is up. A rail that went down and
// came back has the same Index and a higher Generation.
type Rail struct {
	Link       Link
	Index      uint16
	Generation uint32
}

// HearingLimit bounds how long a fence waits for peers to hear of it.
const HearingLimit = time.Second

// Peer is another engine as the control plane knows it.
type Peer struct {
	Address   string // of its control plane, "host:port"; also its name in errors
	Name      string
	MachineID string     // equal where memory can be shared
	Network   string     // equal where 127.0.0.1 leads to the same place: a machine's containers differ
	ID        ID         // of the engine that answered; another one is another peer
	Identity  string     // that its credentials prove, "" if nothing does; only the control plane fills it
	Host      string     // that its call came from, "" where we called: calls back to it go there, and to no other host
	Version   uint16     // of the transport's protocol that both ends speak, the highest; only Attach is given it
	Protects  Protection // at least, between hosts; only Host.Self says it, of our own engine
	Self      bool       // our own engine: transfers inside one process. Never taken from a message
}

// Names returns all that the peer has proved to be, as patterns match it (security.Names): its identities and its ID.
func (p *Peer) Names() string { return ProvedNames(p.Identity, p.ID) }

// ProvedNames joins identities, with spaces between, and an ID.
func ProvedNames(identities string, id ID) string {
	if identities == "" {
		return "id:" + id.String()
	}
	return identities + " id:" + id.String()
}

// Slice is the unit posted on one rail. The core fills the first block before Submit and does not touch the slice until
// its completion has been delivered; the transport reads it and may use Scratch meanwhile. Slices live in the core's
// slab: their addresses are stable, and a transport keeps plain pointers to them. One slice may be many work requests
// of a NIC: the core's cost is a slice, so slices are long where links are fast (Info.SliceBest).
type Slice struct {
	Op        Op
	Checked   bool   // carry a CRC-32C of the bytes and verify it where they arrive; only where Info.Checksums
	Class     uint8  // smaller is served first wherever slices of several classes wait, also at the peer
	First     uint32 // index in Pieces of the slice's first piece; it has Length/Pieces.Bytes of them
	Rail      Rail
	LocalKey  LocalKey
	RemoteKey RemoteKey
	Local     uintptr // address of the first byte here
	Remote    uint64  // offset of the first byte in the remote region
	Length    uint64  // bytes, never 0, at most Info.SliceMax
	Epoch     Epoch   // of the remote region's owner, as it was known when the slice's task began
	Id        uint64  // the core's name of this attempt; unique while the engine lives
	Pieces    *Pieces // many equal pieces instead of one range; nil for one, and always where Info.Vectors is false

	Scratch [4]uint64 // the transport's, from acceptance to completion
}

// Pieces are equal parts of a task that has many, the pages of a grid. Part i lies at Slice.Local + LocalAt[i] here and
// at Slice.Remote + RemoteAt[i] in the remote region. The core checked them against both regions; an owner that does
// not trust the peer checks them again. Immutable until the last slice that points here has completed.
type Pieces struct {
	LocalAt, RemoteAt []uint64 // bytes; of equal length
	Bytes             uint64   // of each part, never 0
}

// Allocation says which memory an Allocator is to bring.
type Allocation struct {
	Size     uint64 // bytes
	Location mem.Location
	HugePage uint64 // bytes of a page of the kernel's pool of huge ones, which the memory is made of; 0: usual pages
}

// Completion is the end of a slice. Err is nil when every byte is visible at the peer (WRITE, rule m) or is in the
// local destination (READ). Bytes counts the delivered bytes, Length on success; a failed slice reports 0 unless the
// transport can prove a prefix. The core sends the bytes again that a success leaves out.
//
// The core uses the record behind Slice again for another slice. Id, the Slice.Id of acceptance, keeps the two apart: a
// second completion of a slice, which breaks rule b, never ends another one. It is counted and reported, and the links
// of a transport that does so three times go down. A transport that has entries of its own keeps the Id in them.
type Completion struct {
	Slice *Slice
	Id    uint64
	Bytes uint64
	Err   *errs.Error
}

// RailInfo describes a rail that came up.
type RailInfo struct {
	Rail       Rail
	Local      string // name of the local end: an address, a NIC
	Remote     string
	Device     string  // local NIC or GPU by its system's name; its rails share its wire. Empty: the local end is one
	Node       int     // NUMA node of the local end, -1 if unknown
	Bandwidth  float64 // bytes/s as configured or negotiated, 0 if unknown: 1 GB/s is assumed until it is measured
	BytesMax   uint64  // bytes in flight that make sense here; 0: 4 MiB, or half a millisecond of Bandwidth if more
	SlicesMax  int     // slices in flight, 0 for the core's default
	Alternates bool    // not part of the matching; used when an end is blamed or left over
	Varied     bool    // the rate depends on the memory more than on the path, so no path is judged by it
}

// Sink is the core's inbox. Any goroutine may call it, never under a lock that Submit, Withdraw, Poll or Arm needs: the
// call may run a step of the core, which calls the transport.
type Sink interface {
	// Complete hands over completions. The slice of completions is copied before it returns.
	Complete([]Completion)
	// Ready says that a rail takes slices again; owed after every Submit that took less than it was given.
	Ready(Rail)
	// Progress says that bytes were acknowledged or received on the rail, or that the peer told it is busy, although no
	// slice has completed. Transports with short slices never need it.
	Progress(Rail)
	RailUp(RailInfo)
	// RailDown ends a rail's generation. Slices outstanding on it still get their completions. A nil cause is an
	// orderly end (evicted, reconfigured), not an error.
	//
	// A local device that is lost, by a sticky error or because it was taken out, takes all rails with it that name it
	// (RailInfo.Device), on every link: RailDown for each. LinkDown, with SideLocal, follows where it had the last one.
	// Rails of other devices stay, and no error of theirs is wider than ScopeRail. A rail that serves several devices
	// names none: it comes up in another generation, and Matcher leaves the lost one's memory out.
	RailDown(Rail, *errs.Error)
	// LinkDown says that the peer cannot be reached over this transport at all, or that its incarnation has ended. The
	// code is PeerRestarted, or PeerUnreachable with SideRemote when its process is known to be gone: its host refuses
	// or resets, or has said so. It is Timeout when the peer says nothing at all, which proves nothing; a proof that
	// comes later is one more call.
	LinkDown(Link, *errs.Error)
	// Fenced says that the owner of an imported region fenced it in an epoch: tasks of older epochs end. With key 0 it
	// is the epoch alone. Tasks that begin after the call carry this epoch at least.
	Fenced(Link, RemoteKey, Epoch)
	// Notified hands over a message that a peer sent by Notifier. It returns false when the queue is full: the
	// transport then withholds its acknowledgement and the sender tries again.
	Notified(from Peer, message []byte) bool
}

// Host is the engine's side of the contract: the services that it offers to a transport.
type Host interface {
	// Call sends a message to the same transport of a peer (its Serve) over the control plane and returns the answer.
	// Used for handshakes and as the last way to ask for a withdrawal; ctx must have a deadline. A peer with several
	// addresses may be called by two of them at once: then Serve has the message twice, and either answer comes back.
	Call(ctx context.Context, peer Peer, message []byte) ([]byte, error)
	// Self describes this engine.
	Self() Peer
	// Refused counts something that was refused to a peer. Log and events show it at most once a second for each peer
	// and reason. From is the peer's address; a stranger's without its port. Any goroutine may call it, also under a
	// lock.
	Refused(reason Refusal, from string, cause error)
	// Addresses are where peers reach the engine, as rpc_server_hostname says: for transports that were given no
	// addresses of their own. None means loopback.
	Addresses() []netip.Addr
	// Describe replaces the descriptor of a registered region: a NIC came or went, or pages moved. The engine calls the
	// peers that know the older one. They import this one, and then forget the key of the older. Until then slices with
	// the older key come: the owner serves them where it can and refuses them as Replaced where it cannot, and then the
	// peer asks at once. Any goroutine may call it, before Register has returned too; it does not block. A key that is
	// not registered is ignored. It is for transports with Info.Replaces: the keys of others are not kept.
	Describe(key LocalKey, descriptor Descriptor)
	Log() *slog.Logger
}

// Info is fixed after Open.
type Info struct {
	Name      string
	Versions  Versions                           // of its protocol that it speaks; peers take one that both do
	Pairs     [mem.KindCount][mem.KindCount]bool // [local kind][remote kind]
	Vectors   bool                               // Slice.Pieces is understood
	Delegates bool                               // slices are orders to the peer's engine: see Deputy
	Files     bool                               // the remote side is a file of this machine: see Filer
	Checksums bool                               // Slice.Checked is honoured: a mismatch fails the slice as Corrupted
	Protects  bool                               // bytes are signed or encrypted as Host.Self demands: see Protection
	SameHost  bool                               // only towards peers with our own machine id
	OtherHost bool                               // only towards peers with another one
	Quiesces  bool                               // Withdraw leaves local memory alone: see there
	Copies    bool                               // Poll carries out queued slices, 10 to 50 µs each: see Poller
	Bounces   bool                               // its bytes of devices cross memory of the host: staging comes first
	Pins      bool                               // Register takes time that grows with the size: it pins pages
	Replaces  bool                               // descriptors of its regions change: see Host.Describe
	SliceMax  uint64                             // bytes in one slice
	SliceBest uint64                             // bytes in one slice beyond which nothing is gained
	Alignment uint64                             // of addresses, offsets and lengths; 1 if any
	SlicesMax int                                // slices outstanding on one rail
	PiecesMax int                                // pieces in one slice where each takes time of its own; 0: any number
}

// Uses reports whether the transport moves a kind of memory at one of its ends.
func (i *Info) Uses(kind mem.Kind) bool {
	for other := range mem.KindCount {
		if i.Pairs[kind][other] || i.Pairs[other][kind] {
			return true
		}
	}
	return false
}

// Factory makes transports of one kind. transports/all lists them; there are no side effects at import.
type Factory interface {
	Name() string
	// Check says why this transport cannot work here, or nil. It must be cheap and leave nothing behind.
	Check() error
	// Open starts it. config is the transport's own Settings struct, a pointer to one, or nil for defaults. The code
	// DeviceNotFound is a reason as those of Check, for one that takes too long to find out there.
	Open(ctx context.Context, config any, host Host, sink Sink) (Transport, error)
}

// Configured is a Factory with keys of its own in the tree of settings.
type Configured interface {
	// Settings returns the zero value of the struct that Open takes. Its tags are the keys, see config.Setting.
	Settings() any
}

// Described is a Factory of a build: people read about its transports in docs/reference/transports.md.
type Described interface {
	// Describe returns the needs of a transport on a machine, as the end of "It needs". like is one that is not open:
	// its Info, by the defaults of its settings, and its optional interfaces are those of an open one, and nothing else
	// of it may be called.
	Describe() (needs string, like Transport)
}

// Listener is a pointer to settings of a transport that peers reach at addresses of its own: the control plane listens
// there too.
type Listener interface{ ListenAddresses() []string }

// Homed is a pointer to settings of a transport that finds NICs by itself, which have addresses that nobody named. The
// control plane listens there too where the engine listens beyond loopback, but for addresses that cannot be bound.
type Homed interface{ HomeAddresses() []netip.Addr }

// Transport is one way to move bytes. All methods may be called from any goroutine.
type Transport interface {
	Info() Info

	// Register makes a region usable as a local operand and, as far as its permission goes, by peers.
	//
	// Memory that the transport cannot use on this machine is errs.NotHere, with the reason for people: a limit of
	// locked memory, no way from the NIC to this device, a read-only mapping. The region then lives on the other
	// transports. Any other error is the user's mistake or ours, and undoes the region everywhere.
	//
	// Where Info.Pins it runs beside other transports' Register, on a goroutine of its own, and transfers of the region
	// may go on over others meanwhile. It ends soon after ctx has. A key that it returns too late is deregistered at
	// once. A dma-buf of the region is closed afterwards: a transport that needs it for longer duplicates it.
	Register(ctx context.Context, region mem.Region) (LocalKey, Descriptor, error)
	// Revoke is the owner's fence: it returns when no slice of an older epoch can touch the bytes any more. That holds
	// for slices that are submitted later, too. ForGood refuses every slice from the start on; only Deregister
	// follows. A nil peer means every peer; another one is known by its ID alone, since it may call itself by any
	// address. READs by peers that were cut off fail.
	//
	// With an epoch, peers that answer have heard of it when Revoke returns, so tasks that they begin from then on pass
	// at once. A transport with NICs that ask nobody replaces the descriptor for all peers, see Host.Describe. A peer
	// that is silent holds Revoke up for HearingLimit at most. It hears later, as one does that has no rail yet; tasks
	// that it begins before are refused.
	Revoke(ctx context.Context, key LocalKey, peer *Peer, epoch Epoch) error
	Deregister(ctx context.Context, key LocalKey) error

	// Attach starts a link and returns at once; rails are dialled side by side, each with a limit.
	Attach(Peer) (Link, error)
	// Import makes a peer's region usable on a link. The key of a descriptor that was imported before may be the same.
	Import(Link, Descriptor) (RemoteKey, error)
	// Forget ends a key that Import returned: its region is closed, or has another key, and every accepted slice that
	// names it has completed. A key that is unknown is ignored.
	Forget(Link, RemoteKey)
	// Detach ends a link; outstanding slices complete, with an error where they must, and by rule c. So one that may
	// still land completes with the peer's answer, with the proof of its end, or with the transport's Close. The link's
	// index is free for another one at once.
	Detach(Link)
	// Stale returns how many calls named a link that had ended. These are Import, Forget, Detach, Submit, Fence, and
	// Inline, Sync, Notify, Probe, Heard and Explain where they are implemented. Each of them was refused.
	Stale() uint64

	// Submit never blocks. It accepts a prefix of slices, which all are of one rail.
	Submit([]*Slice) (accepted int)
	// Withdraw asks for the completions of accepted slices by the finest means there is, without blocking. A slice that
	// has completed meanwhile is ignored. A slice that the peer cannot confirm stays outstanding: the transport goes on
	// asking.
	//
	// Where Info.Quiesces, nobody touches the local memory of these slices when it has returned, also of those that
	// stay outstanding. Elsewhere a task that ended dirty keeps its memory until they have completed.
	Withdraw([]*Slice)
	// Fence is the last resort, for condemned rails: it ends the generation and asks for all completions of the rail.
	Fence(Rail)

	// Serve answers a Host.Call of the same transport of a peer.
	Serve(ctx context.Context, from Peer, message []byte) ([]byte, error)
	// Close ends everything. Slices still outstanding are completed as far as that can be proved.
	Close(ctx context.Context) error
}

// Signs are the signs of life of a rail's other end, each with its time; 0 for never.
type Signs struct {
	// Heard is when anything last came, an acknowledgement or bytes. The kernel of a process that is stopped goes on to
	// acknowledge.
	Heard clock.Time
	// Moved is when bytes last moved: they came, or were acknowledged while more are on their way.
	Moved clock.Time
	// Spoke is when bytes last came, which the peer's process itself must have sent.
	Spoke clock.Time
	// Unacked says that bytes are on their way that the peer's system has not acknowledged.
	Unacked bool
	// Held says that the peer holds the rail up itself: bytes wait because it does not take them.
	Held bool
}
