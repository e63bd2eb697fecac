package ascend

import (
	"context"
	"fmt"
	"runtime"
	"strings"
	"sync"

	"github.com/tent-engine/tent/gocore/device"
	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/mem"
	"github.com/tent-engine/tent/gocore/transport"
	"github.com/tent-engine/tent/transports/ascend/acl"
	"github.com/tent-engine/tent/transports/ascend/hixl"
	"github.com/tent-engine/tent/transports/kit"
)

// Name of this transport in settings, metrics and errors.
const Name = "ascend_direct"

// Bounds.
const (
	slicesMax  = 256 // accepted and not completed, of one link
	sliceMax   = 16 << 20
	sliceBest  = 4 << 20
	postedMost = 8 // of one link: HIXL works at one while the next wait
)

// Factory makes the transport; see transport.Factory.
type Factory struct{}

var (
	_ transport.Factory    = Factory{}
	_ transport.Configured = Factory{}
	_ transport.Described  = Factory{}
	_ transport.Surveyor   = Factory{}
	_ transport.Transport  = (*ascend)(nil)
	_ transport.Explainer  = (*ascend)(nil)
	_ transport.Remapper   = (*ascend)(nil)
	_ transport.Visited    = (*ascend)(nil)
)

// Settings implements transport.Configured.
func (Factory) Settings() any { return Settings{} }

// Name returns "ascend_direct".
func (Factory) Name() string { return Name }

// Check returns the library that is missing, or why no NPU can be used.
func (Factory) Check() error {
	if err := (acl.Platform{}).Check(); err != nil {
		return err
	}
	return hixl.Load()
}

// Survey names the devices for `tent doctor`.
func (Factory) Survey() (lines []string) {
	list, _ := acl.Platform{}.Devices() // Check has passed
	for i, d := range list {
		at := device.Place{Platform: acl.Platform{}, Ordinal: i}.Location()
		lines = append(lines, fmt.Sprintf("%s: %s, by HIXL", at, d.Name))
	}
	return lines
}

// Open makes the engine of HIXL, which listens.
func (f Factory) Open(_ context.Context, given any, host transport.Host, sink transport.Sink) (transport.Transport,
	error) {
	s, err := checked(given)
	if err != nil {
		return nil, err
	}
	if err := f.Check(); err != nil {
		return nil, err
	}
	t := &ascend{settings: s, host: host, sink: sink, self: host.Self(), quiet: make(chan struct{}),
		claims: map[string]*link{}, guests: guests{byKey: map[guestKey]*guest{}}}
	t.changed.L, t.most = &t.mu, s.Links
	t.ctx, t.cancel = context.WithCancel(context.Background())
	if err := t.bell.open(); err != nil {
		return nil, err
	}
	if err := t.instance.begin(t); err != nil {
		t.cancel()
		t.bell.close()
		return nil, err
	}
	if err := t.startCarrier(); err != nil {
		t.cancel()
		t.instance.end()
		t.bell.close()
		return nil, err
	}
	return t, nil
}

// ascend is one engine's transport. Any goroutine may call it.
type ascend struct {
	settings Settings
	host     transport.Host
	sink     transport.Sink
	self     transport.Peer
	life     kit.Lifecycle
	ctx      context.Context // ends when Close begins
	cancel   context.CancelFunc
	quiet    chan struct{} // closed once Close has ended our own links
	links    kit.Links[link]
	ways     sync.Map // links that may still reach a peer's memory, attached or not: *link by its number
	regions  kit.Slots[transport.LocalKey, region]
	guests   guests
	instance instance
	bell     bell // wakes the carrier
	carrier  carrier

	mu       sync.Mutex       // of the states of links and slices; no call of HIXL and of the sink is made under it
	changed  sync.Cond        // a slice or a link has another state
	active   []*link          // with slices
	starving []*link          // that are owed Ready
	claims   map[string]*link // links that are connected, or about to be, by the peer's engine of HIXL
	seats    int              // links that are connected, or about to be
	most     int              // of them
	waiting  int              // links that wait for a place
	paused   int              // calls that need all links gone
	stopped  bool             // the carrier ends
}

// Info implements transport.Transport.
func (t *ascend) Info() transport.Info {
	info := transport.Info{Name: Name, Versions: transport.Versions{First: version, Last: version}, Vectors: true,
		Pins: true, Alignment: 1, SliceMax: sliceMax, SliceBest: sliceBest, SlicesMax: slicesMax}
	for _, here := range [...]mem.Kind{mem.Host, mem.Npu} {
		for _, there := range [...]mem.Kind{mem.Host, mem.Npu} {
			info.Pairs[here][there] = true
		}
	}
	return info
}

// Stale implements transport.Transport.
func (t *ascend) Stale() uint64 { return t.links.Stale() }

// Close ends our own links, and then the engine of HIXL: nobody reaches our memory when it returns.
func (t *ascend) Close(ctx context.Context) error {
	t.cancel()
	for _, l := range t.links.All() {
		l.leave()
	}
	return t.life.Close(ctx, func() error {
		close(t.quiet)
		heard := map[transport.ID]transport.Peer{}
		for number, l := range t.links.All() {
			heard[l.peer.ID] = l.peer
			t.links.Detach(number)
		}
		for _, g := range t.guests.all() {
			heard[g.peer.ID] = g.peer
		}
		t.mu.Lock()
		t.stopped = true
		t.mu.Unlock()
		t.bell.ring()
		t.carrier.running.Wait()
		t.instance.end()
		t.bell.close()
		t.farewell(ctx, heard)
		return nil
	})
}

// farewell lets peers know that their links have ended; those that do not listen find out by themselves.
func (t *ascend) farewell(ctx context.Context, peers map[transport.ID]transport.Peer) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), silence)
	defer cancel()
	var wait sync.WaitGroup
	for _, peer := range peers {
		wait.Go(func() { _, _ = t.host.Call(ctx, peer, message(kindGoodbye, 0)) })
	}
	wait.Wait()
}

// Explain returns the state of a link.
func (t *ascend) Explain(number transport.Link) string {
	l := t.links.Lookup(number)
	if l == nil {
		return fmt.Sprintf("ascend_direct: link %v has ended", number)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	var b strings.Builder
	fmt.Fprintf(&b, "ascend_direct: %s by HIXL, %s, generation %d, %d slices wait, %d are posted", t.instance.where(),
		l.connection, l.generation, l.queue.Len(), l.posted.Len())
	if l.trouble != nil {
		fmt.Fprintf(&b, "; the latest failure: %v", l.trouble)
	}
	return b.String()
}

// await waits until a condition about the state of links and slices holds, or ctx ends, and reports whether it does.
// The caller holds mu.
func (t *ascend) await(ctx context.Context, done func() bool) bool {
	stop := context.AfterFunc(ctx, func() {
		t.mu.Lock()
		t.changed.Broadcast()
		t.mu.Unlock()
	})
	defer stop()
	for !done() {
		if ctx.Err() != nil {
			return false
		}
		t.changed.Wait()
	}
	return true
}

// refused is the error of a slice that may not be carried out, or was asked back.
func refused(code errs.Code, side errs.Side, cause string) *errs.Error {
	return errs.New(code, Name, "%s", cause).WithScope(errs.ScopeSlice, side)
}

// onThread locks the calling goroutine to its thread, for which the context of the device is current from then on. The
// goroutine ends without unlocking it, and the thread with it.
func (t *ascend) onThread() error {
	runtime.LockOSThread()
	return acl.Adopt(t.instance.ordinal)
}
