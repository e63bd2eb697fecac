package tcp

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/tent-engine/tent/gocore/clock"
	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/nic"
)

// watch listens to the kernel's news about the interfaces that carry our ends of rails (rtnetlink(7), RFC 3549). A
// socket does not learn that its own cable was pulled or its address removed: it retransmits into the void until its
// user time-out. A netlink socket learns it at once.
//
// It begins with the first end that is not loopback. Its goroutine ends when the socket is closed.
type watch struct {
	t     *Transport
	ended chan struct{}

	mu     sync.Mutex
	closed bool
	socket *os.File // nil before the first end
	ends   map[netip.Addr]*end
	links  map[int]bool // every interface: does it run
	stale  bool         // the last look at them failed: the next news bring another
}

// end is one of our addresses.
type end struct {
	link int  // index of its interface, 0 while there is none
	good bool // the address is there and its interface runs
}

// watchGroups are the kernel's multicasts about interfaces and addresses.
const watchGroups = unix.RTMGRP_LINK | unix.RTMGRP_IPV4_IFADDR | unix.RTMGRP_IPV6_IFADDR

// watchEnds starts to watch these ends.
func (t *Transport) watchEnds(addresses []netip.Addr) error {
	t.watch.t, t.watch.ends, t.watch.links = t, map[netip.Addr]*end{}, map[int]bool{}
	for _, a := range addresses {
		if err := t.watch.begin(a); err != nil {
			return err
		}
	}
	return nil
}

// add watches one end more, of a rail that follows its route.
func (w *watch) add(a netip.Addr) {
	if err := w.begin(a); err != nil {
		w.t.host.Log().Warn("tcp: no news about an interface", "address", a, "error", err)
	}
}

// begin watches an end. The news begin before the state is read, so that no change between the two is lost.
func (w *watch) begin(a netip.Addr) error {
	a = a.WithZone("")
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.closed || a.IsLoopback() || w.ends[a] != nil {
		return nil
	}
	if w.socket == nil {
		if err := w.subscribe(); err != nil {
			return err
		}
	}
	added := &end{}
	w.ends[a] = added
	w.read()
	added.good = w.links[added.link] // the others' changes come as news
	return nil
}

func (w *watch) subscribe() error {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, unix.NETLINK_ROUTE)
	if err != nil {
		return fmt.Errorf("netlink: %w", err)
	}
	socket := os.NewFile(uintptr(fd), "netlink")
	if err := unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK, Groups: watchGroups}); err != nil {
		return errors.Join(fmt.Errorf("netlink: %w", err), socket.Close())
	}
	w.socket, w.ended = socket, make(chan struct{})
	go w.run(socket)
	return nil
}

func (w *watch) close() {
	w.mu.Lock()
	w.closed = true
	socket := w.socket
	w.mu.Unlock()
	if socket != nil {
		_ = socket.Close() // Read returns
		<-w.ended
	}
}

func (w *watch) run(socket *os.File) {
	defer close(w.ended)
	defer w.t.guard()
	b := make([]byte, 64<<10)
	for {
		n, err := socket.Read(b)
		missed := errors.Is(err, unix.ENOBUFS) // more news than the socket holds
		if err != nil && !missed {
			if !errors.Is(err, os.ErrClosed) {
				w.t.host.Log().Error("tcp: no news about interfaces any more", "error", err)
			}
			return
		}
		changed := w.learn(b[:max(n, 0)], missed)
		w.t.places.forgetPlaces() // before rails are dialled again because of the news
		for _, c := range changed {
			w.t.endChanged(c.address, c.cause)
		}
	}
}

// learn enters news, or looks itself where some were missed. It lists the ends that are in another state now.
func (w *watch) learn(news []byte, missed bool) []endChange {
	w.mu.Lock()
	defer w.mu.Unlock()
	if missed || w.stale {
		w.read()
	} else {
		w.apply(news)
	}
	return w.changes()
}

// read takes the state of interfaces and addresses as it is now. Holds w.mu, as changes does, which compares.
func (w *watch) read() {
	interfaces, err := net.Interfaces()
	if w.stale = err != nil; w.stale {
		w.t.host.Log().Warn("tcp: interfaces cannot be read", "error", err)
		return
	}
	w.links = make(map[int]bool, len(interfaces))
	for _, e := range w.ends {
		e.link = 0
	}
	for _, i := range interfaces {
		w.links[i.Index] = i.Flags&net.FlagUp != 0 && i.Flags&net.FlagRunning != 0
		addresses, err := i.Addrs()
		if err != nil {
			continue // it has just gone
		}
		for _, a := range addresses {
			if n, is := a.(*net.IPNet); is {
				w.place(n.IP, i.Index)
			}
		}
	}
}

func (w *watch) place(ip net.IP, link int) {
	if a, ok := netip.AddrFromSlice(ip); ok {
		if e := w.ends[a.Unmap()]; e != nil {
			e.link = link
		}
	}
}

// apply enters the news of one datagram of the kernel.
func (w *watch) apply(b []byte) {
	messages, err := syscall.ParseNetlinkMessage(b)
	if err != nil {
		w.read()
		return
	}
	for i := range messages {
		m := &messages[i]
		switch m.Header.Type {
		case unix.RTM_NEWLINK, unix.RTM_DELLINK:
			if len(m.Data) >= unix.SizeofIfInfomsg {
				index := int(int32(binary.NativeEndian.Uint32(m.Data[4:])))
				flags := binary.NativeEndian.Uint32(m.Data[8:])
				runs := flags&unix.IFF_UP != 0 && flags&unix.IFF_RUNNING != 0
				w.links[index] = m.Header.Type == unix.RTM_NEWLINK && runs
			}
		case unix.RTM_NEWADDR, unix.RTM_DELADDR:
			if len(m.Data) >= unix.SizeofIfAddrmsg {
				w.applyAddress(m, int(binary.NativeEndian.Uint32(m.Data[4:])))
			}
		}
	}
}

func (w *watch) applyAddress(m *syscall.NetlinkMessage, link int) {
	attributes, err := syscall.ParseNetlinkRouteAttr(m)
	if err != nil {
		return
	}
	for _, a := range attributes {
		if a.Attr.Type != unix.IFA_LOCAL && a.Attr.Type != unix.IFA_ADDRESS { // IPv6 has only the second
			continue
		}
		if m.Header.Type == unix.RTM_NEWADDR {
			w.place(a.Value, link)
		} else if ip, ok := netip.AddrFromSlice(a.Value); ok {
			if e := w.ends[ip.Unmap()]; e != nil && e.link == link {
				e.link = 0
			}
		}
	}
}

// endChange is an end that has come or, for a cause, gone.
type endChange struct {
	address netip.Addr
	cause   *errs.Error
}

// changes takes note of the ends that are in another state now, and lists them. Holds w.mu.
func (w *watch) changes() (list []endChange) {
	for a, e := range w.ends {
		good := w.links[e.link]
		if good == e.good {
			continue
		}
		e.good = good
		list = append(list, endChange{a, w.causeOf(a, e)})
	}
	return list
}

// causeOf is why an end is gone, nil if it is there. Holds w.mu.
func (w *watch) causeOf(a netip.Addr, e *end) *errs.Error {
	switch {
	case w.links[e.link]:
		return nil
	case e.link == 0:
		return errs.New(errs.Lost, "tcp.watch", "address %v was removed", a)
	}
	return errs.New(errs.Lost, "tcp.watch", "the interface of %v is down", a)
}

// lost returns why one of our ends is gone, as the kernel has it now. The news of it still come, and change its state.
func (w *watch) lost(a netip.Addr) *errs.Error {
	a = a.WithZone("")
	w.mu.Lock()
	defer w.mu.Unlock()
	e := w.ends[a]
	if e == nil || w.closed {
		return nil
	}
	w.read()
	return w.causeOf(a, e)
}

// endChanged takes the rails of one of our ends down, or dials them now. Their peers hear of it, so that they send
// another way too.
func (t *Transport) endChanged(a netip.Addr, cause *errs.Error) {
	for _, l := range t.links.All() {
		l.runOnLink(func(now clock.Time) { l.endChanged(a, cause, now) })
	}
	if cause != nil {
		t.attachments.lostEnd(a)
	}
}

func (l *link) endChanged(a netip.Addr, cause *errs.Error, now clock.Time) {
	for _, r := range *l.rails.Load() {
		if r.local.WithZone("") != a {
			continue
		}
		r.away = cause != nil && !r.hasOtherSource()
		if cause == nil {
			r.redialNow(now)
			continue
		}
		if r.set != nil {
			own := *cause
			l.railDown(r, r.ours(&own), now)
		}
		if r.due = now; r.away {
			r.due = now.Add(awayEvery)
		}
	}
}

// hasOtherSource reports whether the route to the rail's far end starts somewhere else by now.
func (r *rail) hasOtherSource() bool {
	if !r.routed {
		return false
	}
	from, found := nic.RouteSource(r.remote.Addr())
	return found && from != r.local
}

// lostEnd reports to initiators that an address of ours at which their lanes end is gone, over their other lanes.
func (as *attachments) lostEnd(a netip.Addr) {
	for _, each := range as.ofPeer(nil) {
		var dead []record
		var others []*responderLane
		for _, l := range each.allLanes() {
			if l.end == a {
				dead = append(dead, record{id: l.id})
			} else {
				others = append(others, l)
			}
		}
		for part := range slices.Chunk(dead, recordsMax) {
			for _, l := range others { // on all, so that none that is stuck holds it up
				if l.post(header{kind: kindGone}, part...) {
					l.pump(submitBudget)
				}
			}
		}
	}
}

// farEndGone breaks a lane of which the peer says, over another one, that its end is gone.
func (l *link) farEndGone(id uint64) {
	if lane := l.laneById(id); lane != nil {
		lane.broke(lane.attribute(errs.New(errs.Lost, "tcp.watch",
			"the peer's end of %s has lost its interface or its address", lane.railName()).
			WithScope(errs.ScopeRail, errs.SideRemote)))
	}
}
