package rdma

import (
	"cmp"
	"errors"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tent-engine/tent/gocore/clock"
	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/mem"
	"github.com/tent-engine/tent/transports/rdma/netdev"
	"github.com/tent-engine/tent/transports/rdma/verbs"
)

// device is a NIC that is open. Its completions are found by its goroutine or by waiters (poll.go), its other news by
// a goroutine of their own.
type device struct {
	t      *Transport
	index  int
	born   uint64 // no two devices of a transport have the same
	name   string
	verbs  *verbs.Device
	limits verbs.Limits
	port   verbs.Port
	node   int     // NUMA node, -1 if unknown
	bus    string  // where it hangs on PCI, "" if unknown
	wire   string  // name of the NIC that its rails share, also with other transports
	rate   float64 // bytes/s, 0 if unknown
	block  uint64  // bytes of a work request
	bells  []bell
	news   *os.File // a duplicate of the device's descriptor: Go closes its own only

	scratch []byte // destination of flushes
	target  *verbs.Memory

	lost   atomic.Bool                // the device has failed: nothing comes back
	missed bool                       // the last look at the list of devices lacked it; of the goroutine that looks
	lanes  atomic.Pointer[[]*lane]    // by the number in the ids of work requests; written under mu
	all    atomic.Pointer[[]*waiting] // completion queues; written under mu

	flying  atomic.Int64   // work requests that are out
	given   atomic.Bool    // it was lost, and closed
	running sync.WaitGroup // its goroutines
	unused  chan struct{}  // has something when a queue pair or a registration went

	risen atomic.Pointer[chan struct{}] // closed and replaced when the port comes up

	mu      sync.Mutex
	uses    int                        // queue pairs and registrations
	free    []int                      // numbers of lanes that were given back
	unended map[*verbs.Pair]clock.Time // the first try to end a pair, of a row that all failed
	guests  guestPairs

	pollMu sync.Mutex // held by the one goroutine that takes completions; a rail's mutex is taken under it
	store  store
	found  [verbs.Batch]verbs.WC
	closed bool // guarded by pollMu, as all below
	armed  bool // every queue, and no bell was quieted since
}

// waiting is a completion queue with the entries that its queue pairs may still need. Each work request may need one,
// for a queue pair that fails gives all of them back.
type waiting struct {
	queue *verbs.Queue
	room  int // guarded by device.mu
}

// softRoCE is the vendor of the device that Linux emulates (RXE_VENDOR_ID).
const softRoCE = 0xffffff

// sets is how many sets of lanes a rail of the device has. Soft-RoCE gets one for WRITEs and one for READs. A WRITE's
// packet that comes twice is acknowledged twice, and in the middle of a READ its completer (rxe_comp.c of Linux 6.12)
// takes the second acknowledgement for the READ's end: the next response fails, and the READ is reported as done.
func (d *device) sets(lanes int) int {
	if d.limits.VendorID == softRoCE && 2*lanes <= lanesMost {
		return 2
	}
	return 1
}

// lanesMax bounds the lanes of a device: their number has 16 bits in the id of a work request.
const lanesMax = 1 << 16

// openDevice opens a device. The port may be down; its state is asked for again at each connection.
func (t *Transport) openDevice(index int, name string) (d *device, err error) {
	d = &device{t: t, index: index, born: t.births.Add(1), name: name, node: -1, unused: make(chan struct{}, 1),
		store: store{most: t.settings.StoreCap}}
	d.risen.Store(newRisen())
	if d.verbs, err = t.library.Open(name); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			d.close()
		}
	}()
	if d.limits, err = d.verbs.Limits(); err != nil {
		return nil, err
	}
	if d.port, err = d.verbs.Port(t.settings.Port); err != nil {
		return nil, err
	}
	for range t.settings.Bells {
		if err = d.addBell(); err != nil {
			return nil, err
		}
	}
	if d.news, err = duplicate(d.verbs.AsyncFd(), name); err != nil {
		return nil, err
	}
	if d.scratch, err = unix.Mmap(-1, 0, unix.Getpagesize(), unix.PROT_READ|unix.PROT_WRITE,
		unix.MAP_PRIVATE|unix.MAP_ANONYMOUS); err != nil {
		return nil, err
	}
	at := mem.AddressOf(d.scratch)
	if d.target, err = d.verbs.Register(at, uint64(len(d.scratch)), uint64(at), verbs.LocalWrite); err != nil {
		return nil, err
	}
	d.block = min(t.settings.Block, cmp.Or(uint64(d.port.Message), t.settings.Block))
	d.survey()
	return d, nil
}

// bell is a completion channel, on which completion queues take turns.
type bell struct {
	*verbs.Bell
	fd    int32
	epoll int      // with the bell in it, for the goroutine of the device
	rings *os.File // the same, in Go's poller
}

func (d *device) addBell() error {
	b, err := d.verbs.NewBell()
	if err != nil {
		return err
	}
	epoll, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return errors.Join(err, b.Close())
	}
	event := unix.EpollEvent{Events: unix.EPOLLIN | unix.EPOLLEXCLUSIVE}
	err = errors.Join(unix.SetNonblock(epoll, true), unix.EpollCtl(epoll, unix.EPOLL_CTL_ADD, b.Fd(), &event))
	rings := os.NewFile(uintptr(epoll), d.name)
	if err != nil {
		return errors.Join(err, rings.Close(), b.Close())
	}
	d.bells = append(d.bells, bell{b, int32(b.Fd()), epoll, rings})
	return nil
}

// survey reads where the device is. Its wire is that of its network interface, which TCP uses too. Its rate is that of
// the kernel's files: the library has eight bits for a speed, and that of XDR is 256.
func (d *device) survey() {
	place := netdev.Of(d.t.settings.root(), d.name, d.t.settings.Port)
	d.rate = d.t.settings.rate(cmp.Or(place.Rate, speeds[d.port.Speed]*widths[d.port.Width]))
	d.node, d.bus, d.wire = place.Node, place.Bus, cmp.Or(place.Interface, d.name)
}

// speeds are bytes/s of a lane of the port, and widths its lanes, by the codes of the InfiniBand architecture (volume
// 1, PortInfo).
var (
	speeds = map[uint8]float64{1: 0.25e9, 2: 0.5e9, 4: 1e9, 8: 1.25e9, 16: 1.75e9, 32: 3.125e9, 64: 6.25e9, 128: 12.5e9}
	widths = map[uint8]float64{1: 1, 2: 4, 4: 8, 8: 12, 16: 2}
)

func duplicate(fd int, name string) (*os.File, error) {
	own, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(own), name), nil
}

// close gives everything back; its goroutines have ended, and its lanes are closed.
func (d *device) close() {
	d.pollMu.Lock() // waiters may still come by
	d.closed = true
	d.pollMu.Unlock()
	if d.target != nil {
		_ = d.target.Close()
	}
	if d.scratch != nil {
		_ = unix.Munmap(d.scratch)
	}
	for _, w := range d.queues() {
		_ = w.queue.Close()
	}
	var kept []*verbs.Bell
	for _, b := range d.bells {
		if b.Bell.Close() != nil {
			kept = append(kept, b.Bell)
		}
		_ = b.rings.Close()
	}
	if d.news != nil {
		_ = d.news.Close()
	}
	switch err := d.verbs.Close(); {
	case err == nil:
	case d.pulled(err):
		for _, b := range kept {
			b.Abandon()
		}
		d.verbs.Abandon()
	default:
		d.t.host.Log().Error("rdma: a device was not given back", "device", d.name, "error", err)
	}
}

func (d *device) queues() []*waiting {
	if all := d.all.Load(); all != nil {
		return *all
	}
	return nil
}

// newPair makes a queue pair on a completion queue with room for it, opening another queue where none has.
func (d *device) newPair(room verbs.Room) (*verbs.Pair, *waiting, error) {
	requests := room.Requests
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.lost.Load() {
		return nil, nil, d.errLost()
	}
	var in *waiting
	for _, w := range d.queues() {
		if w.room >= requests {
			in = w
			break
		}
	}
	if in == nil {
		entries := max(requests, min(d.t.settings.Entries, d.limits.Entries))
		queue, err := d.verbs.NewQueue(entries, d.bells[len(d.queues())%len(d.bells)].Bell)
		if err != nil {
			return nil, nil, err
		}
		in = &waiting{queue, queue.Entries}
		if err := d.addQueue(in); err != nil {
			return nil, nil, err
		}
	}
	pair, err := d.verbs.NewPair(in.queue, room)
	if err != nil {
		return nil, nil, err
	}
	in.room -= requests
	d.uses++
	return pair, in, nil
}

// addQueue enters a completion queue, and arms it where the others are armed. One that is armed without a note rings
// twice in front of one answer, and an answer takes as many rings as there are queues. The caller holds d.mu.
func (d *device) addQueue(w *waiting) error {
	d.pollMu.Lock()
	defer d.pollMu.Unlock()
	all := append(append([]*waiting{}, d.queues()...), w)
	d.all.Store(&all)
	if !d.armed {
		return nil
	}
	return w.queue.Arm()
}

// endPair closes a pair. Its completions may lie in the queue until somebody polls, so all are taken first. An error
// says that the pair may still move bytes, for nothing proves the end: it is there for another try.
func (d *device) endPair(pair *verbs.Pair, in *waiting, requests int) error {
	closed := pair.Close()
	if closed != nil && !d.pulled(closed) {
		if err := pair.Reset(); err != nil && !d.pulled(err) {
			return d.notEnded(pair, closed)
		}
		d.t.host.Log().Error("rdma: a queue pair was reset, and not given back", "device", d.name, "error", closed)
	}
	d.take()
	d.expect()
	d.mu.Lock()
	delete(d.unended, pair)
	if closed == nil {
		in.room += requests
	}
	d.mu.Unlock()
	d.unuse()
	return nil
}

// endLimit is how long a device may fail to end a queue pair before it is given up.
const endLimit = time.Second

// notEnded notes that a pair does not end. A device that goes on to fail is lost, which takes it out of use and proves
// nothing: slices that wait for the end of the pair wait on.
func (d *device) notEnded(pair *verbs.Pair, cause error) error {
	err := errs.New(errs.Lost, Name, "a queue pair of %s does not end: %v", d.name, cause).
		WithScope(errs.ScopeRail, errs.SideLocal).WithHint("reset the device, or restart the process")
	d.mu.Lock()
	now := clock.Now()
	since, again := d.unended[pair]
	if !again {
		if d.unended == nil {
			d.unended = map[*verbs.Pair]clock.Time{}
		}
		since = now
		d.unended[pair] = now
	}
	d.mu.Unlock()
	if now > since.Add(endLimit) && !d.lost.Load() {
		d.t.life.Go(func() { d.lose(err) }) // the caller holds locks
	}
	return err
}

// endedAfterAll forgets the trouble with a pair that stays. The next trouble with it begins anew.
func (d *device) endedAfterAll(pair *verbs.Pair) {
	d.mu.Lock()
	delete(d.unended, pair)
	d.mu.Unlock()
}

// enter gives a lane its number.
func (d *device) enter(l *lane) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	var list []*lane
	if old := d.lanes.Load(); old != nil {
		list = *old
	}
	grown := append([]*lane{}, list...)
	if n := len(d.free); n > 0 {
		l.number, d.free = d.free[n-1], d.free[:n-1]
		grown[l.number] = l
	} else if l.number = len(grown); l.number < lanesMax {
		grown = append(grown, l)
	} else {
		return false
	}
	d.lanes.Store(&grown)
	return true
}

func (d *device) leave(l *lane) {
	d.mu.Lock()
	defer d.mu.Unlock()
	grown := append([]*lane{}, *d.lanes.Load()...)
	grown[l.number] = nil
	d.free = append(d.free, l.number)
	d.lanes.Store(&grown)
}

func (d *device) lane(number int) *lane {
	if list := d.lanes.Load(); list != nil && number < len(*list) {
		return (*list)[number]
	}
	return nil
}

// listenAndAttend starts the goroutines of the device. They end by wake.
func (d *device) listenAndAttend() {
	start := func(f func()) {
		d.running.Add(1)
		if !d.t.life.Go(func() { defer d.running.Done(); f() }) {
			d.running.Done()
		}
	}
	for i := range d.bells {
		start(func() { d.listen(&d.bells[i]) })
	}
	start(d.attend)
}

// attend reads the news of a device until it is closed.
func (d *device) attend() {
	raw, err := d.news.SyscallConn()
	if err != nil {
		return
	}
	_ = raw.Read(func(uintptr) bool {
		for {
			e, err := d.verbs.Event()
			if err != nil {
				return !errors.Is(err, syscall.EAGAIN) || d.t.life.Closed()
			}
			d.heard(e)
		}
	})
}

// wake ends the goroutines of a transport that closes.
func (d *device) wake() {
	for _, b := range d.bells {
		_ = b.rings.SetReadDeadline(time.Unix(1, 0))
	}
	_ = d.news.SetReadDeadline(time.Unix(1, 0))
}

// heard acts on news of the device. Their effects on rails stand in the table of status.go.
func (d *device) heard(e verbs.Event) {
	act, known := eventActs[e.Type]
	ofPort := act.reach == reachPort || act.reach == reachAddress || act.reach == reachRisen
	if !known || ofPort && int(e.About) != d.t.settings.Port {
		return
	}
	d.t.host.Log().Warn("rdma: "+verbs.EventName(e.Type), "device", d.name, "about", e.About)
	cause := act.cause(d.name, verbs.EventName(e.Type))
	switch act.reach {
	case reachPair:
		d.each(func(l *lane) bool { return l.pair.Number == e.About }, cause)
	case reachDevice:
		d.lose(cause)
	case reachPort:
		d.each(func(*lane) bool { return true }, cause)
	case reachRisen:
		d.rise()
	case reachAddress:
		list, _ := d.verbs.GIDs(d.t.settings.Port) // none of a device that does not answer
		d.each(func(l *lane) bool { return !slices.Contains(list, l.rail.from) }, cause)
	}
}

// rise lets the rails that rest between two tries to connect go on at once.
func (d *device) rise() {
	close(*d.risen.Swap(newRisen()))
}

func newRisen() *chan struct{} { return new(make(chan struct{})) }

// each takes the rails of some lanes down, once each: a rail may be up again before its next lane is looked at.
func (d *device) each(meant func(*lane) bool, cause *errs.Error) {
	list := d.lanes.Load()
	if list == nil {
		return
	}
	found := make(map[*rail]bool)
	for _, l := range *list {
		if l == nil {
			continue
		}
		l.rail.mu.Lock()
		if l.pair != nil && meant(l) {
			found[l.rail] = true
		}
		l.rail.unlock()
	}
	for r := range found {
		r.down(cause)
	}
}
