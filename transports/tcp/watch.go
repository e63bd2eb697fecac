package tcp

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/tent-engine/tent/gocore/clock"
	"github.com/tent-engine/tent/gocore/errs"
)

// watch listens to the kernel's news about the interfaces that carry our ends of rails (rtnetlink(7), RFC 3549). A
// socket does not learn that its own cable was pulled or its address removed: it retransmits into the void until its
// user time-out. A netlink socket learns it at once.
//
// Its goroutine owns everything but the socket, and ends when that is closed.
type watch struct {
	t      *Transport
	socket *os.File
	ended  chan struct{}
	ends   map[netip.Addr]*end
	links  map[int]bool // every interface: does it run
}

// end is one of our addresses.
type end struct {
	link int  // index of its interface, 0 while there is none
	good bool // the address is there and its interface runs
}

// watchGroups are the kernel's multicasts about interfaces and addresses.
const watchGroups = unix.RTMGRP_LINK | unix.RTMGRP_IPV4_IFADDR | unix.RTMGRP_IPV6_IFADDR

// watchEnds starts to watch; nil if there is nothing to be watched. The news begin before the state is read, so that no
// change between the two is lost.
func (t *Transport) watchEnds(addresses []netip.Addr) (*watch, error) {
	w := &watch{t: t, ended: make(chan struct{}), ends: map[netip.Addr]*end{}}
	for _, a := range addresses {
		if !a.IsLoopback() {
			w.ends[a.WithZone("")] = &end{}
		}
	}
	if len(w.ends) == 0 {
		return nil, nil
	}
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, unix.NETLINK_ROUTE)
	if err != nil {
		return nil, fmt.Errorf("netlink: %w", err)
	}
	w.socket = os.NewFile(uintptr(fd), "netlink")
	if err := unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK, Groups: watchGroups}); err != nil {
		return nil, errors.Join(fmt.Errorf("netlink: %w", err), w.socket.Close())
	}
	w.read()
	go w.run()
	return w, nil
}

func (w *watch) close() {
	if w != nil {
		_ = w.socket.Close() // Read returns
		<-w.ended
	}
}

func (w *watch) run() {
	defer close(w.ended)
	defer w.t.guard()
	b := make([]byte, 64<<10)
	for {
		n, err := w.socket.Read(b)
		switch {
		case errors.Is(err, unix.ENOBUFS): // more news than the socket holds
			w.read()
		case err != nil:
			if !errors.Is(err, os.ErrClosed) {
				w.t.host.Log().Error("tcp: no news about interfaces any more", "error", err)
			}
			return
		default:
			w.apply(b[:n])
		}
		w.t.places.forgetPlaces() // before rails are dialled again because of the news
		w.reportChanges()
	}
}

// read takes the state as it is now.
func (w *watch) read() {
	interfaces, err := net.Interfaces()
	if err != nil {
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
	for _, e := range w.ends {
		e.good = w.links[e.link]
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

// reportChanges passes ends that have changed on to every link.
func (w *watch) reportChanges() {
	for a, e := range w.ends {
		good := w.links[e.link]
		if good == e.good {
			continue
		}
		e.good = good
		var cause *errs.Error
		switch {
		case good:
		case e.link == 0:
			cause = errs.New(errs.Lost, "tcp.watch", "address %v was removed", a)
		default:
			cause = errs.New(errs.Lost, "tcp.watch", "the interface of %v is down", a)
		}
		w.t.endChanged(a, cause)
	}
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
		if r.away = cause != nil; !r.away {
			r.redialNow(now)
			continue
		}
		if r.set != nil {
			own := *cause
			l.railDown(r, own.WithScope(errs.ScopeRail, errs.SideLocal).WithPeer(l.peer.Address, Name, r.name()), now)
		}
		r.due = now.Add(awayEvery)
	}
}

// lostEnd reports to initiators that an address of ours at which their lanes end is gone, over their other lanes.
func (as *attachments) lostEnd(a netip.Addr) {
	for _, each := range as.ofPeer(nil) {
		var dead []record
		var others []*responderLane
		for _, l := range each.openLanes() {
			if l.end == a {
				dead = append(dead, record{id: l.id})
			} else {
				others = append(others, l)
			}
		}
		for len(dead) > 0 {
			k := min(len(dead), recordsMax)
			for _, l := range others { // on all, so that none that is stuck holds it up
				if l.post(header{kind: kindGone}, dead[:k]...) {
					l.pump(submitBudget)
				}
			}
			dead = dead[k:]
		}
	}
}

// farEndGone breaks a lane of which the peer says, over another one, that its end is gone.
func (l *link) farEndGone(id uint64) {
	if lane := l.laneById(id); lane != nil {
		lane.broke(errs.New(errs.Lost, "tcp.watch", "the peer's end of %s has lost its interface or its address",
			lane.railName()).WithScope(errs.ScopeRail, errs.SideRemote).
			WithPeer(lane.peerName(), Name, lane.railName()))
	}
}
