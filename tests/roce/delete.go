package roce

import (
	"fmt"
	"sync"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// deletions are those under way in this process, by the interface. The kernel ends one when the last program has closed
// the RDMA device on it.
var deletions = struct {
	sync.Mutex
	ends map[string]chan error
}{ends: map[string]chan error{}}

// kernelPatience bounds the wait for the kernel, on a machine with much else to do.
const kernelPatience = 2 * time.Minute

// Delete removes an end's interface, and its RDMA device. It returns when nobody can find them any more;
// programs that have the device open keep a dead one.
func (r Rail) Delete(e End) error {
	name := r.Interface(e)
	link, err := netlink.LinkByName(name)
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	updates, done := make(chan netlink.LinkUpdate, 64), make(chan struct{})
	if err := netlink.LinkSubscribe(updates, done); err != nil {
		return fmt.Errorf("delete %s: %w", name, err)
	}
	defer close(done)
	ended := make(chan error, 1)
	go func() { ended <- netlink.LinkDel(link) }() // it ends with the kernel's call, for which Add waits
	deletions.Lock()
	deletions.ends[name] = ended
	deletions.Unlock()
	limit := time.NewTimer(kernelPatience)
	defer limit.Stop()
	for {
		select {
		case update := <-updates:
			if update.Header.Type == unix.RTM_DELLINK && update.Attrs().Index == link.Attrs().Index {
				return nil
			}
		case err := <-ended:
			ended <- err
			return err
		case <-limit.C:
			return fmt.Errorf("delete %s: the kernel did not within %v", name, kernelPatience)
		}
	}
}

// Add ends Delete: an interface and a device of the same names. Programs must have closed the dead device.
func (r Rail) Add(e End) error {
	name := r.Interface(e)
	deletions.Lock()
	ended := deletions.ends[name]
	delete(deletions.ends, name)
	deletions.Unlock()
	if ended != nil {
		limit := time.NewTimer(kernelPatience)
		defer limit.Stop()
		select {
		case err := <-ended:
			if err != nil {
				return fmt.Errorf("delete %s: %w", name, err)
			}
		case <-limit.C:
			return fmt.Errorf("add %s: a program still has the dead %s open", name, r.Device(e))
		}
	}
	if err := r.cable(e); err != nil {
		return err
	}
	return r.attach(e)
}
