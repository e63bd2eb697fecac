package rdma

import (
	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/transport"
	"github.com/tent-engine/tent/transports/rdma/verbs"
)

const (
	pairsPerPeer = railsMax * lanesMost // on one device
	pairsShare   = 2                    // guests together have one of this many of its queue pairs
)

// guestPairs counts the queue pairs of guests on a device. It has a number of them for all processes of the host, and
// peers say how many they want.
type guestPairs struct {
	all    int
	ofPeer map[transport.ID]int
}

// take counts one more, unless all guests have most of them, or the peer its share.
func (p *guestPairs) take(peer transport.ID, most int) bool {
	if p.all >= most || p.ofPeer[peer] >= pairsPerPeer {
		return false
	}
	if p.ofPeer == nil {
		p.ofPeer = map[transport.ID]int{}
	}
	p.all++
	p.ofPeer[peer]++
	return true
}

func (p *guestPairs) give(peer transport.ID) {
	p.all--
	if p.ofPeer[peer]--; p.ofPeer[peer] == 0 {
		delete(p.ofPeer, peer)
	}
}

// guestPair makes a queue pair for a guest; endGuestPair ends it.
func (d *device) guestPair(peer transport.Peer) (*verbs.Pair, *waiting, error) {
	most := max(d.limits.Pairs/pairsShare, lanesMost)
	d.mu.Lock()
	taken, all, own := d.guests.take(peer.ID, most), d.guests.all, d.guests.ofPeer[peer.ID]
	d.mu.Unlock()
	if !taken {
		err := errs.New(errs.TooManyRequests, "rdma.serve", "peers have %d queue pairs of %d on %s, %d of them this "+
			"one, which may have %d", all, most, d.name, own, pairsPerPeer)
		d.t.host.Refused(transport.RefusedLimit, peer.Address, err)
		return nil, nil, err
	}
	pair, in, err := d.newPair(verbs.Room{Requests: guestRequests})
	if err != nil {
		d.giveGuestPair(peer.ID)
	}
	return pair, in, err
}

func (d *device) giveGuestPair(peer transport.ID) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.guests.give(peer)
}

// endGuestPair is endPair for a pair of guestPair.
func (d *device) endGuestPair(l *guestLane, peer transport.ID) error {
	if err := d.endPair(l.pair, l.in, guestRequests); err != nil {
		return err
	}
	d.giveGuestPair(peer)
	return nil
}
