package share

import (
	"context"
	"fmt"
	"hash/fnv"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tent-engine/tent/gocore/clock"
	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/qos"
)

// Options of a Memory.
type Options struct {
	Name     string        // of POSIX shared memory: "/mooncake_rdma_slots"
	Branch   string        // of the settings that name it, for errors: "transports/tcp"
	Interval time.Duration // of a slot: the same for all that share
	Log      *slog.Logger
	// Told is called when nothing is shared any more, with the cause, and with nil when it is again. It is called from
	// the keeper's goroutine, without a lock.
	Told func(cause *errs.Error)
}

// Memory is one engine's part in the memory that the processes of a host share under a name. Its methods may be called
// from any goroutine.
type Memory struct {
	name  naming
	log   *slog.Logger
	told  func(*errs.Error)
	slots qos.Slots
	grain clock.Time
	netns uint64

	woken   chan struct{}
	stirred atomic.Bool // something was said since the keeper's last round
	asleep  atomic.Bool // the keeper waits for something to be said
	stop    context.CancelFunc
	keeper  sync.WaitGroup

	mu       sync.Mutex // held over system calls, never by a Device
	file     *file      // nil: nothing is shared
	why      *errs.Error
	reserved []uintptr // addresses of files that were left

	list    sync.Mutex // held for a look only: Device is called under the engine's mutex
	devices []*Device
}

// Intervals and limits of the keeper.
const (
	round      = 100 * time.Millisecond // looks whether the file is still there, while something is said
	openWait   = time.Second            // for the table, at Open
	keeperWait = 20 * time.Millisecond  // for the table, later: it tries again in the next round
)

// Open joins the processes that share a name, or is the first of them. The error names the cause, the path and the
// setting: PermissionDenied where the file is another user's, InvalidEntry where it is not one that this version
// writes, InvalidArgument where the others have another interval, TooManyRequests where there is no room, OutOfMemory
// where the file system is full. Close gives everything back.
func Open(ctx context.Context, o Options) (*Memory, error) {
	m := &Memory{name: naming{path: pathOf(o.Name), branch: o.Branch, interval: o.Interval}, log: o.Log, told: o.Told,
		slots: qos.Slots{Interval: o.Interval}, grain: grain(o.Interval), netns: namespace("net"),
		woken: make(chan struct{}, 1)}
	if err := m.join(ctx, openWait); err != nil {
		return nil, err
	}
	running, stop := context.WithCancel(context.Background())
	m.stop = stop
	m.keeper.Go(func() { m.keep(running) })
	return m, nil
}

// Close gives the row back. No method of a Device is running or called afterwards. A second Close does nothing.
func (m *Memory) Close() {
	m.stop()
	m.keeper.Wait()
	m.mu.Lock()
	defer m.mu.Unlock()
	m.part(true)
	for _, base := range m.reserved {
		unreserve(base)
	}
	m.reserved = nil
}

// Device returns the shared view of a local NIC of a transport; the same one for the same names. A NIC of another
// network namespace is another one, even with the same name. It does not wait: the device takes part a moment later.
func (m *Memory) Device(transport, nic string) *Device {
	m.list.Lock()
	defer m.list.Unlock()
	for _, d := range m.devices {
		if d.transport == transport && d.nic == nic {
			return d
		}
	}
	d := &Device{memory: m, transport: transport, nic: nic, name: fit(fmt.Sprintf("%s/%s@%d", transport, nic, m.netns)),
		slot: -1}
	m.devices = append(m.devices, d)
	m.stirred.Store(true)
	m.poke()
	return d
}

// fit shortens a name that is too long for an entry without making two of one.
func fit(name string) string {
	if len(name) < nameBytes {
		return name
	}
	h := fnv.New64a()
	h.Write([]byte(name))
	return fmt.Sprintf("%s#%016x", name[:nameBytes-18], h.Sum64())
}

func (m *Memory) all() []*Device {
	m.list.Lock()
	defer m.list.Unlock()
	return m.devices[:len(m.devices):len(m.devices)]
}

// stir keeps the keeper awake. It costs two loads while it is.
func (m *Memory) stir() {
	if !m.stirred.Load() {
		m.stirred.Store(true)
	}
	if m.asleep.Load() && m.asleep.CompareAndSwap(true, false) {
		m.poke()
	}
}

func (m *Memory) poke() {
	select {
	case m.woken <- struct{}{}:
	default:
	}
}

// View is how sharing stands now.
type View struct {
	Path      string
	Cause     *errs.Error // why nothing is shared; nil while something is
	Interval  time.Duration
	Slot      int // now
	Processes int // that share, this one among them; two engines of a process count twice
	Devices   []DeviceView
}

// DeviceView is one local NIC.
type DeviceView struct {
	Transport, NIC string
	Others         uint64 // bytes that other processes have in flight there
}

// View reads the file. It costs some system calls, and is for people and scrapes. It also makes the keeper check the
// file, so that the next View is up to date.
func (m *Memory) View(now clock.Time) View {
	m.stir()
	m.mu.Lock()
	defer m.mu.Unlock()
	v := View{Path: m.name.path, Cause: m.why, Interval: m.name.interval, Slot: m.slots.Current(now), Processes: 1}
	if m.file != nil {
		v.Processes = m.file.processes()
	}
	for _, d := range m.all() {
		var l look
		if p := d.at.Load(); p != nil && p.read(&l, now) != nil {
			l = look{}
		}
		v.Devices = append(v.Devices, DeviceView{d.transport, d.nic, l.others})
	}
	return v
}

// Check reports why nothing can be shared on this machine; nil if it can. It leaves nothing behind.
func Check() error {
	n := &naming{branch: "transports/*"}
	fd, err := unnamed(time.Millisecond)
	if err != nil {
		return n.impossible(err)
	}
	defer unix.Close(fd)
	if err := (&file{naming: n, fd: fd}).flock(unix.F_WRLCK, devicesAt); err != nil {
		return n.lockless(err)
	}
	return nil
}

func pathOf(name string) string { return folder + "/" + strings.TrimPrefix(name, "/") }
