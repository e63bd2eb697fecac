package rdma

import (
	"context"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tent-engine/tent/gocore/clock"
	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/transport"
	"github.com/tent-engine/tent/transports/rdma/verbs"
)

// memory is a region's registrations with a device. Large regions are cut: devices bound the bytes of one registration,
// and several are pinned side by side. The addresses of work requests run through, each part has a key of its own.
type memory struct {
	device *device
	cut    uint64 // bytes of each part but the last
	parts  []*verbs.Memory
	ended  bool // guarded by the caller of end
}

// Limits of parts.
const (
	partsMost   = 4096 // of a region, as descriptors of peers are taken
	partsAtOnce = 8    // that a device pins side by side
	tellAfter   = 5 * time.Second
)

// cutOf returns the bytes of each part of a region. Its descriptor names the parts of each device, so they are larger
// where those that are asked for would be too many, also of devices that come later. Borders lie at multiples of the
// page size from its start.
func cutOf(bytes, asked uint64, devices int) uint64 {
	devices = min(max(4, 2*devices), devicesMax)
	most := uint64(transport.DescriptorMax-describedHead-2*devices) / uint64(4*devices) // a state and a rank of each
	least, page := (bytes+most-1)/most, uint64(unix.Getpagesize())
	return max(asked, (least+page-1)/page*page)
}

// partsOf returns the number of parts.
func partsOf(bytes, cut uint64) uint64 { return (bytes + cut - 1) / cut }

// key returns the keys of the part with a byte of the region, and how many bytes of the part there are from there on.
func (m *memory) key(at uint64) (part *verbs.Memory, left uint64) {
	if len(m.parts) == 1 {
		return m.parts[0], ^uint64(0)
	}
	return m.parts[at/m.cut], m.cut - at%m.cut
}

// register pins a region part by part until ctx ends, see verbs.Device.Register. Memory of a device without a dma-buf
// is left to a driver in the kernel that knows it by address.
func (d *device) register(ctx context.Context, r *region, first uint64, access verbs.Access) (*memory, error) {
	if !d.use() {
		return nil, d.errLost()
	}
	m := &memory{device: d, cut: r.cut}
	if d.limits.Memory > 0 && min(m.cut, r.Size) > d.limits.Memory {
		d.unuse()
		cure := "lower transports/rdma/registration_bytes"
		if m.cut > d.t.settings.Cut {
			cure = "register the memory as several regions"
		}
		return nil, errs.New(errs.NotHere, "rdma.register", "%s registers %d bytes at once, of parts of %d", d.name,
			d.limits.Memory, m.cut).WithHint("%s", cure)
	}
	m.parts = make([]*verbs.Memory, partsOf(r.Size, m.cut))
	if err := m.pin(ctx, r, first, access); err != nil {
		_ = m.end()
		return nil, err
	}
	return m, nil
}

// pin registers the parts, some at once. It logs now and then how far it is, and returns the first error.
func (m *memory) pin(ctx context.Context, r *region, first uint64, access verbs.Access) (failed error) {
	d := m.device
	var mu sync.Mutex
	next, done, told := 0, 0, clock.Now()
	var wait sync.WaitGroup
	for range min(partsAtOnce, len(m.parts)) {
		wait.Go(func() {
			for {
				mu.Lock()
				i := next
				next++
				over := i >= len(m.parts) || failed != nil
				mu.Unlock()
				if over {
					return
				}
				at := uint64(i) * m.cut
				part, err := d.registerPart(ctx, r, at, min(m.cut, r.Size-at), first+at, access)
				mu.Lock()
				m.parts[i] = part
				if failed == nil {
					failed = err
				}
				if done++; clock.Now() > told.Add(tellAfter) {
					told = clock.Now()
					d.t.host.Log().Info("rdma: memory is being registered", "device", d.name, "parts", done,
						"of", len(m.parts), "bytes", r.Size)
				}
				mu.Unlock()
			}
		})
	}
	wait.Wait()
	return failed
}

func (d *device) registerPart(ctx context.Context, r *region, at, bytes, first uint64, access verbs.Access,
) (*verbs.Memory, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if r.DMABuf != nil {
		return d.verbs.RegisterDMABuf(r.DMABuf.Fd, r.DMABuf.Offset+at, bytes, first, access)
	}
	return d.verbs.Register(r.Addr+uintptr(at), bytes, first, access)
}

// shares reports whether a part has a remote key that one of another memory has, or had. A nil one has none.
func (m *memory) shares(other *memory) bool {
	return other != nil && slices.ContainsFunc(m.parts, func(part *verbs.Memory) bool {
		return slices.ContainsFunc(other.parts, func(o *verbs.Memory) bool { return o.RKey == part.RKey })
	})
}

// end closes the registrations. A nil one is none. An error says that keys may still open the memory: they are there
// for another try.
func (m *memory) end() (failed error) {
	if m == nil || m.ended {
		return nil
	}
	for _, part := range m.parts {
		if part == nil {
			continue
		}
		if err := part.Close(); err != nil && !m.device.pulled(err) {
			failed = errs.New(errs.RdmaError, Name, "a registration with %s does not end: %v", m.device.name, err).
				WithScope(errs.ScopeTransport, errs.SideLocal).WithHint("reset the device, or restart the process")
		}
	}
	if failed != nil {
		m.device.t.host.Log().Warn("rdma: memory was not given back", "error", failed)
		return failed
	}
	m.ended = true
	m.device.unuse()
	return nil
}
