package engine

import (
	"context"
	"encoding/base64"
	"encoding/binary"
	"hash/crc32"

	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/mem"
	"github.com/tent-engine/tent/gocore/segment"
	"github.com/tent-engine/tent/gocore/transport"
)

// A token is text for a stack's own handshake: a name of the lease that holds within the whole cluster. It gives no
// rights. Its bytes are
//
//	id of the engine (16) + id of the lease (8) + size (8) + CRC-32C of those (4)
const (
	tokenPrefix = "lease1-"
	tokenBytes  = 36
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// Token returns the token of a lease: at most 64 characters that pass through JSON, URLs and headers as they are. It is
// InvalidEntry for a lease that has ended: no peer can touch the bytes by it any more. One that a peer holds up
// behind its time has not ended.
func (e *Engine) Token(id mem.RegionID) (string, error) {
	l := e.regions.reachable(id)
	if l == nil || l.lease == nil || !l.isFirst() {
		return "", errs.New(errs.InvalidEntry, "token", "the lease has ended")
	}
	return e.TokenOf(id, l.lease.total), nil
}

// TokenOf returns the token of a lease by its number and its bytes, whether or not it has ended by now.
func (e *Engine) TokenOf(id mem.RegionID, size uint64) string {
	self := e.credentials.ID()
	b := append(make([]byte, 0, tokenBytes), self[:]...)
	b = binary.LittleEndian.AppendUint64(b, uint64(id))
	b = binary.LittleEndian.AppendUint64(b, size)
	b = binary.LittleEndian.AppendUint32(b, crc32.Checksum(b, castagnoli))
	return tokenPrefix + base64.RawURLEncoding.EncodeToString(b)
}

// readToken reads a token. Any text may be given.
func readToken(text string) (owner transport.ID, id mem.RegionID, size uint64, err *errs.Error) {
	malformed := errs.New(errs.InvalidArgument, "lease", "this is no token of a lease, or it was damaged").
		WithHint("Region.share() makes leases, and their tokens travel as they are")
	if len(text) != len(tokenPrefix)+base64.RawURLEncoding.EncodedLen(tokenBytes) ||
		text[:len(tokenPrefix)] != tokenPrefix {
		return owner, 0, 0, malformed
	}
	b, failure := base64.RawURLEncoding.Strict().DecodeString(text[len(tokenPrefix):])
	if failure != nil || crc32.Checksum(b[:32], castagnoli) != binary.LittleEndian.Uint32(b[32:]) {
		return owner, 0, 0, malformed
	}
	id, size = mem.RegionID(binary.LittleEndian.Uint64(b[16:])), binary.LittleEndian.Uint64(b[24:])
	return transport.ID(b[:16]), id, size, nil
}

// FindLease returns the lease of a peer that a token names. It asks the peer where the lease is not known yet. The
// error is AddressNotRegistered for one that has ended, or that is for other peers: the owner does not tell which. A
// lease of several ranges is returned as one region with the bytes of all.
func (e *Engine) FindLease(ctx context.Context, id SegmentID, token string) (segment.Region, error) {
	owner, lease, size, failure := readToken(token)
	if failure != nil {
		return segment.Region{}, failure
	}
	h, failure := e.segments.get(id)
	switch {
	case failure != nil:
		return segment.Region{}, failure
	case h.base != 0 || h.peer.file != nil:
		return segment.Region{}, errs.New(errs.InvalidArgument, "lease", "the segment is a single region or a file").
			WithHint("open the peer as a whole")
	case owner != h.peer.identity.ID:
		return segment.Region{}, errs.New(errs.InvalidEntry, "lease", "the token is of another engine than %s",
			h.peer.identity.Address).WithHint("an engine that starts again is another one, and its leases have ended")
	}
	if err := h.peer.join(ctx); err != nil {
		return segment.Region{}, err
	}
	for asked := false; ; asked = true {
		if r, is := h.peer.regions.Load().description.Lease(lease); is && r.Size == size {
			return r, nil
		}
		if asked {
			return segment.Region{}, errs.New(errs.AddressNotRegistered, "lease",
				"%s offers no such lease: it has ended, or it is for other peers", h.peer.identity.Address)
		}
		if err := h.peer.refresh(ctx); err != nil {
			return segment.Region{}, err
		}
	}
}

// OpenLease opens the lease that a token names as a segment of its own. Offsets on it count from 0.
// The errors are those of FindLease. Whichever of the two segments is closed, the other one stays.
func (e *Engine) OpenLease(ctx context.Context, id SegmentID, token string) (SegmentID, segment.Region, error) {
	lease, err := e.FindLease(ctx, id, token)
	if err != nil {
		return 0, lease, err
	}
	h, failure := e.segments.get(id)
	if failure != nil {
		return 0, lease, failure
	}
	p := e.peer(h.peer.identity)
	if err := p.join(ctx); err != nil {
		e.leavePeer(p)
		return 0, lease, err
	}
	return e.opened(&handle{peer: p, base: lease.ID, name: lease.Name}), lease, nil
}
