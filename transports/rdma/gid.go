package rdma

import (
	"bytes"
	"cmp"
	"math"
	"slices"

	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/transports/rdma/verbs"
)

// A port has many addresses, and the table does not say which of them lead to a peer. So a rail tries pairs of
// addresses until one is proved: an empty WRITE is acknowledged. RoCE v2 comes before v1, routable before link-local,
// and then their index counts. The one that was proved last is tried at every other turn: most paths come back as they
// were.
//
// The initiator chooses its own, and says how many of the peer's it passes over. Both are of one protocol and one
// scope: no packet leads from an address of RoCE v2 to one of v1, or from IPv4 to IPv6.

// addressing is a rail's choice; the rail's goroutine has it.
type addressing struct {
	now    choice
	good   choice // the last one that was proved
	proved bool   // now is
	failed int    // choices that led nowhere since the last proof
}

type choice struct {
	own  verbs.GID
	skip uint8 // of the peer's
}

// next chooses among the addresses of a port, of which there is one at least.
func (a *addressing) next(list []verbs.GID) choice {
	before := a.now
	a.now = a.pick(list)
	a.proved = a.proved && a.now == before
	return a.now
}

func (a *addressing) pick(list []verbs.GID) choice {
	turn, known := a.failed, slices.Contains(list, a.good.own)
	if known && turn%2 == 0 {
		return a.good
	}
	if known {
		turn /= 2
	}
	for ; ; turn++ {
		if c := nth(list, turn); !known || c != a.good {
			return c
		}
	}
}

// nth is the choice of a turn. In the first round the i-th address of a kind goes with the peer's i-th.
func nth(list []verbs.GID, turn int) choice {
	own := list[turn%len(list)]
	skip := turn / len(list)
	for i := range list[:turn%len(list)] {
		if alike(&list[i], &own) {
			skip++
		}
	}
	return choice{own, uint8(skip)}
}

// judge takes the end of a proof.
func (a *addressing) judge(leads bool) {
	if a.proved = leads; leads {
		a.good, a.failed = a.now, 0
	} else {
		a.failed++
	}
}

// indexMost is the last entry of a table that a queue pair can name.
const indexMost = math.MaxUint8

// addresses lists the addresses of the device's port that may be used, the best first.
func (d *device) addresses() ([]verbs.GID, error) {
	s := &d.t.settings
	list, err := d.verbs.GIDs(s.Port)
	if err != nil {
		return nil, err
	}
	list = slices.DeleteFunc(list, func(g verbs.GID) bool {
		return rankOf(&g) == 0 || g.Index > indexMost || *s.GIDIndex >= 0 && g.Index != *s.GIDIndex
	})
	sortGIDs(list)
	switch {
	case len(list) > 0:
		return list, nil
	case *s.GIDIndex >= 0:
		err = errs.New(errs.DeviceNotFound, "rdma.address", "port %d of %s has no address at index %d", s.Port, d.name,
			*s.GIDIndex).WithScope(errs.ScopeRail, errs.SideLocal).
			WithHint("set transports/rdma/device/gid_index to -1")
	default:
		err = errs.New(errs.DeviceNotFound, "rdma.address", "port %d of %s has no address", s.Port, d.name).
			WithScope(errs.ScopeRail, errs.SideLocal)
	}
	return nil, err
}

// sortGIDs puts the best first.
func sortGIDs(list []verbs.GID) {
	slices.SortStableFunc(list, func(a, b verbs.GID) int {
		return cmp.Or(cmp.Compare(rankOf(&b), rankOf(&a)), cmp.Compare(a.Index, b.Index))
	})
}

// answering is the address of ours that goes with a peer's, after as many others as it passes over.
func (d *device) answering(theirs *end) (verbs.GID, error) {
	list, err := d.addresses()
	if err != nil {
		return verbs.GID{}, err
	}
	far := theirs.address()
	list = slices.DeleteFunc(list, func(g verbs.GID) bool { return !alike(&g, &far) })
	if len(list) == 0 {
		return verbs.GID{}, errs.New(errs.DeviceNotFound, "rdma.address", "no address of %s is of the peer's kind",
			d.name).WithScope(errs.ScopeRail, errs.SideLocal)
	}
	return list[int(theirs.skip)%len(list)], nil
}

// alike reports whether packets can lead from one address to the other.
func alike(a, b *verbs.GID) bool {
	if a.InfiniBnd && b.InfiniBnd { // a LID of another subnet is somebody else's here
		return [8]byte(a.GID[:8]) == [8]byte(b.GID[:8])
	}
	return a.RoCEv2 == b.RoCEv2 && a.InfiniBnd == b.InfiniBnd && mapped(a) == mapped(b) && linkLocal(a) == linkLocal(b)
}

// mapped reports an IPv4 address.
func mapped(g *verbs.GID) bool { return bytes.Equal(g.GID[:12], []byte{10: 0xff, 11: 0xff}) }

func linkLocal(g *verbs.GID) bool {
	if mapped(g) {
		return g.GID[12] == 169 && g.GID[13] == 254
	}
	return g.GID[0] == 0xfe && g.GID[1]&0xc0 == 0x80 && !g.InfiniBnd
}

// rankRouted is the least rank of an address that leads beyond its own link.
const rankRouted = 4

// rankOf orders addresses by how far they lead; 0 is none.
func rankOf(g *verbs.GID) int {
	switch {
	case g.GID == [16]byte{}:
		return 0
	case g.InfiniBnd:
		return 6
	case !g.RoCEv2 && linkLocal(g):
		return 1
	case !g.RoCEv2:
		return 2
	case linkLocal(g):
		return 3
	case !mapped(g):
		return rankRouted
	}
	return 5
}
