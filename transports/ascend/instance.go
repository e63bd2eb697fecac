package ascend

import (
	"errors"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tent-engine/tent/gocore/device"
	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/transports/ascend/acl"
	"github.com/tent-engine/tent/transports/ascend/hixl"
)

// instance is the transport's engine of HIXL. An engine that has to be gone at once is finalised, and another one
// begins at another port, with the same registrations: no link of before leads there.
//
// Its calls are made by a few threads that have the context of the device for good. Each is a number of milliseconds at
// most, but for Connect, which has a limit.
type instance struct {
	t       *ascend
	ordinal int
	at      netip.Addr
	calls   chan func()
	running sync.WaitGroup // of the threads
	serial  atomic.Uint64  // of registrations: a link reaches those that were there when it came

	gate   sync.RWMutex // held while a call of HIXL is made, and for writing while the engine is exchanged
	engine *hixl.Engine // nil: none could begin
	failed error        // the reason then
	name   string       // "address:port", by which peers connect
	port   int          // the next one to try
	life   uint64       // of the engine; grows with each
	over   bool         // none begins any more

	mu      sync.Mutex // of registrations
	entries []*entryOf
}

// threads make the calls of HIXL that may take long; that many connect at once.
const threads = 8

// begin starts the threads and the first engine.
func (i *instance) begin(t *ascend) error {
	i.t, i.ordinal, i.calls = t, t.settings.device(), make(chan func())
	i.at = netip.AddrFrom4([4]byte{127, 0, 0, 1})
	if list := t.host.Addresses(); len(list) > 0 {
		i.at = list[0]
	}
	i.port = t.settings.Port + 1000*i.ordinal
	if err := acl.Usable(i.ordinal); err != nil {
		return err
	}
	err := i.start()
	if err == nil {
		i.gate.Lock()
		err = i.openLocked()
		i.gate.Unlock()
	}
	if err != nil {
		close(i.calls)
		i.running.Wait()
	}
	return err
}

// start starts the threads. One that does not get the context of the device is an error.
func (i *instance) start() error {
	ready := make(chan error)
	for range threads {
		i.running.Go(func() {
			failed := i.t.onThread()
			ready <- failed
			for call := range i.calls {
				call()
			}
		})
	}
	var err error
	for range threads {
		err = errors.Join(err, <-ready)
	}
	return err
}

// do makes a call on one of the threads, and returns when it has ended.
func (i *instance) do(call func()) {
	done := make(chan struct{})
	i.calls <- func() {
		defer close(done)
		call()
	}
	<-done
}

const (
	openTries = 64 // bounds the ports that others take just before us
	freeTries = 4  // and of those, the ports that nobody has afterwards: others had looked at them, as we do
)

// openLocked makes an engine at the next free port. The processes of a host begin at once, and HIXL takes a port by its
// number, so another one may come between: then the next port is tried. The caller holds gate for writing.
func (i *instance) openLocked() error {
	i.life++
	unexplained := 0
	for range openTries {
		name, next, err := free(i.at, i.port)
		if err != nil {
			i.engine, i.failed = nil, errs.Wrap(errs.DeviceNotFound, "ascend.open", err)
			return i.failed
		}
		i.name, i.port = name, next
		if i.failed = i.openAt(name); i.failed == nil {
			return nil
		}
		if still, _, err := free(i.at, next-1); err == nil && still == name {
			if unexplained++; unexplained == freeTries {
				break
			}
		}
	}
	return i.failed
}

func (i *instance) openAt(name string) (failed error) {
	i.do(func() {
		engine, status := hixl.Open(name, i.t.settings.options()...)
		if i.engine = engine; status != hixl.Success {
			e := status.Error("ascend.open", hixl.Report()).WithScope(errs.ScopeTransport, errs.SideLocal)
			e.Code = errs.DeviceNotFound
			i.engine, failed = nil, e
		}
	})
	return failed
}

// end finalises the engine and ends the threads. No call follows.
func (i *instance) end() {
	i.gate.Lock()
	if i.engine != nil {
		i.do(i.engine.Close)
		i.engine = nil
	}
	i.over, i.failed = true, errs.New(errs.EngineClosed, Name, "transport is closed")
	i.gate.Unlock()
	close(i.calls)
	i.running.Wait()
}

// replace finalises the engine, which ends every link at both ends, and begins another one. It is the last resort of an
// owner: nothing that a silent peer has posted reaches our memory when it returns.
func (i *instance) replace(why string) {
	i.gate.Lock()
	defer i.gate.Unlock()
	if i.over {
		return
	}
	i.t.host.Log().Warn("ascend_direct: the engine of HIXL begins again", "because", why)
	i.t.loseAll(why)
	if i.engine != nil {
		i.do(i.engine.Close)
	}
	if i.openLocked() == nil {
		i.registerAgain()
	}
	if i.failed != nil {
		i.t.host.Log().Error("ascend_direct: no engine of HIXL", "err", i.failed)
	}
	i.t.kickAll()
}

// with makes a call of the engine on one of the threads. The error is that of the engine, where there is none.
func (i *instance) with(call func(engine *hixl.Engine, life uint64)) error {
	i.gate.RLock()
	defer i.gate.RUnlock()
	if i.engine == nil {
		return i.failed
	}
	i.do(func() { call(i.engine, i.life) })
	return nil
}

// address returns the name by which peers connect, and the newest registration that they reach then.
func (i *instance) address() (name string, serial uint64, err error) {
	i.gate.RLock()
	defer i.gate.RUnlock()
	return i.name, i.serial.Load(), i.failed
}

// where names the device, for people.
func (i *instance) where() string {
	return string(device.Place{Platform: acl.Platform{}, Ordinal: i.ordinal}.Location())
}

// disconnectLimit bounds the end of a link.
const disconnectLimit = time.Second
