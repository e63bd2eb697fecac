package rail

// Culprit is the cause of a failure of a rail.
type Culprit uint8

// Culprits.
const (
	Path      Culprit = iota // between two ends that work: avoid this pair. Also when nothing more is known.
	LocalEnd                 // our end: every rail that begins there
	RemoteEnd                // the peer's end: every rail that leads there
	WholePeer                // all its ends: the peer is slow or gone, no other rail helps
)

func (c Culprit) String() string { return [...]string{"path", "local end", "remote end", "peer"}[c&3] }

// Pair is a rail by its two ends. Ends are numbers that mean the same in every Pair; a remote end's number is its own
// at each peer.
type Pair struct{ Local, Remote, Peer int }

// Sighting is a recent fact about another rail: it carried something, or it failed.
type Sighting struct {
	Pair
	Works bool
}

// Blame finds the culprit for the failure of a pair, from sightings of others. It follows the LNet seed's list of
// failures:
//
//	our end reaches others, theirs is reached from elsewhere   a path failure
//	their end is reached from nowhere, their other ends are    the remote end
//	our end reaches nobody, another of our ends does           the local end
//	no end of the peer is reached                              the peer
//	only this pair could show                                  cannot be told apart: avoid the pair
func Blame(failed Pair, others []Sighting) Culprit {
	var local, remote, peer, strangers, away verdict
	for i := range others {
		o := &others[i]
		if o.Pair == failed {
			continue
		}
		if o.Local != failed.Local {
			away.addSighting(o.Works)
		} else if local.addSighting(o.Works); o.Peer != failed.Peer {
			strangers.addSighting(o.Works)
		}
		if o.Peer != failed.Peer {
			continue
		}
		if peer.addSighting(o.Works); o.Remote == failed.Remote {
			remote.addSighting(o.Works)
		}
	}
	switch {
	case local.works && remote.works:
		return Path
	case !local.works && ((strangers.fails && away.works) || (local.fails && peer.works)):
		return LocalEnd
	case peer.fails && !peer.works:
		return WholePeer
	case remote.fails && !remote.works:
		return RemoteEnd
	}
	return Path
}

// verdict sums up sightings of one kind.
type verdict struct{ works, fails bool }

func (v *verdict) addSighting(works bool) {
	if works {
		v.works = true
	} else {
		v.fails = true
	}
}
