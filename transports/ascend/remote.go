package ascend

import (
	"context"
	"slices"

	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/mem"
	"github.com/tent-engine/tent/gocore/transport"
	"github.com/tent-engine/tent/transports/kit"
)

// remote is a region of the peer.
type remote struct {
	region, base, size uint64
	serial             uint64 // links that were made since see it
	permission         mem.Permission
	fixed              bool // not even its owner may write it

	passage kit.Passage // as far as its owner's news have come
}

// hear applies news.
func (m *remote) hear(n news) {
	m.passage.Raise(n.floor)
	if n.closed {
		m.passage.Close()
	}
}

// refuses returns why a slice of an epoch may not touch the region, nil if it may.
func (m *remote) refuses(epoch transport.Epoch) *errs.Error {
	switch m.passage.Admits(epoch) {
	case kit.DoorClosed:
		return refused(errs.AddressNotRegistered, errs.SideRemote, "the owner has closed the region")
	case kit.DoorFenced:
		return transport.Fenced(Name)
	}
	return nil
}

// apply shuts the keys of a region, and returns one of them.
func (l *link) apply(n news) (named transport.RemoteKey) {
	for key, m := range l.keys.All() {
		if m.region == n.region {
			m.hear(n)
			named = key
		}
	}
	return named
}

// reached returns the owner's keys of the regions that the link can reach.
func (l *link) reached() (keys []uint64) {
	for _, m := range l.keys.All() {
		if !m.passage.Closed() {
			keys = append(keys, m.region)
		}
	}
	slices.Sort(keys)
	return slices.Compact(keys)
}

// importsMost bounds the imports of a link, so that its hello has room for all, and for those that come at once.
const importsMost = newsMost / 2

// Import implements transport.Transport. It asks the owner whether the region is still there; from then on the owner
// knows that this link has to hear of a fence.
func (t *ascend) Import(number transport.Link, d transport.Descriptor) (transport.RemoteKey, error) {
	l := t.links.Lookup(number)
	if l == nil {
		return 0, kit.StaleLink("ascend.import", number)
	}
	m, bad := decode(d, l.peer.ID)
	if bad != nil {
		return 0, bad
	}
	if l.keys.Len() >= importsMost {
		return 0, errs.New(errs.TooManyRequests, "ascend.import", "%d regions of one peer, which is the limit",
			importsMost).WithScope(errs.ScopeSlice, errs.SideLocal)
	}
	if m.permission == mem.LocalReadWrite {
		return 0, refused(errs.PermissionDenied, errs.SideRemote, "the owner keeps the region to itself")
	}
	ctx, cancel := context.WithTimeout(l.ctx, transport.HearingLimit)
	defer cancel()
	key := l.keys.Insert(func(transport.RemoteKey) *remote { return m }) // before the question: news may overtake it
	n, err := l.learn(ctx, m.region)
	if err != nil {
		l.keys.Delete(key)
		return 0, err
	}
	m.hear(n)
	return key, nil
}

// Forget implements transport.Transport.
func (t *ascend) Forget(number transport.Link, key transport.RemoteKey) {
	if l := t.links.Lookup(number); l != nil {
		l.keys.Delete(key)
	}
}
