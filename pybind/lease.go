package pybind

import (
	"context"
	"encoding/json"

	"github.com/tent-engine/tent/gocore/engine"
	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/mem"
	"github.com/tent-engine/tent/gocore/segment"
)

// ShareRegion gives peers parts of a region as a lease. It returns in JSON its id ("lease"), which CloseRegion and
// FenceRegion take, and its token. ranges is a JSON list of [offset, size]. Permission 0 is that of the region, or all
// that its buffer allows. It ends after expiresMs milliseconds, which may be over when this returns; 0 is no end.
func ShareRegion(
	id int64, region uint64, ranges, name string, permission int64, peers string, expiresMs int64,
) (string, error) {
	return on(id, func(e *engine.Engine) (string, error) {
		allowed, to, err := accessOf("share", permission, peers)
		if err != nil {
			return "", err
		}
		var pairs [][2]uint64
		if err := json.Unmarshal([]byte(ranges), &pairs); err != nil {
			return "", errs.Wrap(errs.InvalidArgument, "ranges", err)
		}
		list, size := make([]engine.Range, len(pairs)), uint64(0)
		for i, pair := range pairs {
			list[i] = engine.Range{Offset: pair[0], Size: pair[1]}
			size += pair[1]
		}
		lease, err := e.Share(mem.RegionID(region), engine.Share{Ranges: list, Name: name,
			Permission: allowed, Peers: to, Expires: ms(expiresMs)})
		if err != nil {
			return "", err
		}
		return toJSON(map[string]any{"lease": uint64(lease), "token": e.TokenOf(lease, size)}), nil
	})
}

// RenewLease gives a lease another end, counted from now on; 0 is none.
func RenewLease(id int64, lease uint64, expiresMs int64) (int64, error) {
	return on(id, func(e *engine.Engine) (int64, error) {
		return 0, e.Renew(mem.RegionID(lease), ms(expiresMs))
	})
}

// LeaseToken returns the token of a lease that has not ended.
func LeaseToken(id int64, lease uint64) (string, error) {
	return on(id, func(e *engine.Engine) (string, error) { return e.Token(mem.RegionID(lease)) })
}

// FindLease returns in JSON the lease of a segment's peer that a token names, as Segment describes regions.
func FindLease(id int64, segment int64, token string, timeoutMs int64) (string, error) {
	return within(id, timeoutMs, func(ctx context.Context, e *engine.Engine) (string, error) {
		r, err := e.FindLease(ctx, engine.SegmentID(segment), token)
		if err != nil {
			return "", err
		}
		return toJSON(fieldsOf(&r)), nil
	})
}

// OpenLease opens the lease of a segment's peer that a token names as a segment of its own. It returns in JSON the
// number of that segment and the size of the lease.
func OpenLease(id int64, of int64, token string, timeoutMs int64) (string, error) {
	return within(id, timeoutMs, func(ctx context.Context, e *engine.Engine) (string, error) {
		opened, r, err := e.OpenLease(ctx, engine.SegmentID(of), token)
		if err != nil {
			return "", err
		}
		return toJSON(map[string]any{"segment": int64(opened), "size": r.Size}), nil
	})
}

// fieldsOf is a region of a peer as Python takes it.
func fieldsOf(r *segment.Region) map[string]any {
	return map[string]any{"id": uint64(r.ID), "name": r.Name, "address": r.Addr, "size": r.Size,
		"location": r.Location, "permission": int(r.Permission), "read_only": r.ReadOnly,
		"lease": r.Lease != 0}
}
