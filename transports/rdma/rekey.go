package rdma

import (
	"context"
	"errors"
	"slices"
	"sync"

	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/transport"
)

// A fence gives its region new remote keys, by registrations of their own, and closes those of before. So the old ones
// open nothing once it has returned, also for a peer that lies about it. Honest peers get the new ones as after Remap:
// their slices by the old keys are refused as Replaced before the NIC has seen them, and the engine has a new
// descriptor.
//
//	new keys ──▶ news: the descriptor of before is replaced ──▶ old keys are closed ──▶ Host.Describe
//
// The end of a peer needs no new keys: Disconnect closes its queue pairs, and no others are connected with a peer
// that may know the keys (decisions 0120 and 0192).
//
// A device registers the bytes of the region once for that, part by part, half as many as Register; pages are pinned
// already, and peers use the old keys meanwhile. Fences that wait for one another share the next registration.

// rekey carries out a fence of a region that is kept, or kept from one peer alone. It fails with ctx while devices
// register: peers have heard then, and those that lie have their keys still.
func (t *Transport) rekey(ctx context.Context, r *region, peer *transport.Peer, n news) error {
	before := r.replaced.Load()
	r.pinning.Lock()
	defer r.pinning.Unlock()
	old := r.keys.Load()
	// The keys that somebody could have when this fence began are closed already. One that loses its right may have
	// learned of the next ones, too.
	shared := r.replaced.Load() != before && !n.closed
	if r.over || shared || !r.Permission.Allows(false) || !t.exposed(old, peer) {
		return errors.Join(t.tell(ctx, r, peer, n), r.endAll(nil))
	}
	k := t.pinAnew(ctx, r, old)
	if err := ctx.Err(); err != nil {
		_ = k.close(false)
		_ = t.tell(context.WithoutCancel(ctx), r, peer, n)
		return errs.Wrap(errs.Timeout, "rdma.revoke", err).WithHint("the devices were registering the region anew: " +
			"fence it again, with more time")
	}
	r.mu.Lock()
	if r.ended {
		r.mu.Unlock()
		_ = k.close(false)
		return nil
	}
	r.replaced.Add(1)
	r.keys.Store(k)
	r.mu.Unlock()
	n.version = k.version
	_ = t.tell(ctx, r, peer, n) // see revoke
	err := r.endAll(old.remote)
	t.pinMissing(ctx, r, old, k)
	t.host.Describe(r.key, t.describe(r))
	return err
}

// exposed reports whether a guest may have the remote keys of a region. A descriptor passes over the engine, and a peer
// that lies learns of nothing: so each guest of another engine counts that has been here since they were made.
func (t *Transport) exposed(k *keys, peer *transport.Peer) bool {
	here, came := t.guests.foreigners()
	return (here || came > k.came) && (peer == nil || !t.guests.disconnected(peer.ID))
}

// pinAnew registers a region with the devices once more, for peers. A device that refuses, as at the limit of locked
// memory, gets another chance when its old key is closed.
func (t *Transport) pinAnew(ctx context.Context, r *region, old *keys) *keys {
	k := &keys{version: old.version + 1, local: old.local, remote: make([]*memory, len(old.remote)), why: old.why}
	k.came = t.guests.left()
	var wait sync.WaitGroup
	for i, own := range old.local {
		if own != nil {
			wait.Go(func() { k.remote[i], _ = own.device.pinForPeers(ctx, r) })
		}
	}
	wait.Wait()
	return k
}

// pinMissing registers a region with the devices that had no room beside the old key. One that gives the old key out
// again is left to the next fence: peers reach the region by other devices and other transports.
func (t *Transport) pinMissing(ctx context.Context, r *region, old, k *keys) {
	whole := *k
	whole.remote = slices.Clone(k.remote)
	var late keys
	for i, own := range old.local {
		if own == nil || k.remote[i] != nil {
			continue
		}
		again, err := own.device.pinForPeers(ctx, r)
		if err == nil && again.shares(old.remote[i]) {
			_ = again.end()
			again = nil
		}
		if again == nil {
			t.host.Log().Warn("rdma: a device has no new key for a region that was fenced", "device", own.device.name,
				"bytes", r.Size, "error", err)
			continue
		}
		whole.remote[i], late.remote = again, append(late.remote, again)
	}
	if len(late.remote) == 0 {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.ended {
		_ = late.close(false)
		return
	}
	r.keys.Store(&whole)
}
