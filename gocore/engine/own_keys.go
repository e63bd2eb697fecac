package engine

import (
	"context"
	"sync"

	"github.com/tent-engine/tent/gocore/transport"
)

// ownKeys are our regions by their keys, for a transport that names them so. It replaces descriptors of regions
// (Info.Replaces), or takes orders for them (Info.Delegates). Other transports have none. Any goroutine may use it.
type ownKeys struct {
	port *port

	mu          sync.Mutex
	regions     map[transport.LocalKey]*region
	registering int                                         // calls of Register under way
	earlier     map[transport.LocalKey]transport.Descriptor // replaced before Register had returned their keys
}

func newOwnKeys(p *port) *ownKeys {
	return &ownKeys{port: p, regions: map[transport.LocalKey]*region{},
		earlier: map[transport.LocalKey]transport.Descriptor{}}
}

// begin notes that a region is being registered: from now on, descriptors of keys that we do not know yet can be
// replaced.
func (k *ownKeys) begin() {
	if k == nil {
		return
	}
	k.mu.Lock()
	k.registering++
	k.mu.Unlock()
}

// end is the counterpart of begin.
func (k *ownKeys) end() {
	if k == nil {
		return
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.registering--; k.registering == 0 {
		clear(k.earlier) // of keys that ended before Register returned
	}
}

// region returns the region with a key, nil if there is none.
func (k *ownKeys) region(key transport.LocalKey) *region {
	if k == nil {
		return nil
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.regions[key]
}

// enter makes a region usable on a transport, with the newest descriptor of its key.
func (p *port) enter(r *region, at *registration) {
	k := p.keys
	if k == nil {
		r.on[p.index].Store(at)
		return
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if newer, is := k.earlier[at.key]; is {
		at = p.registered(at.key, newer)
	}
	k.regions[at.key] = r
	r.on[p.index].Store(at)
}

// deregister ends the key of a region.
func (p *port) deregister(ctx context.Context, key transport.LocalKey) error {
	if k := p.keys; k != nil {
		k.mu.Lock()
		delete(k.regions, key)
		k.mu.Unlock()
	}
	return p.transport.Deregister(ctx, key)
}

// Describe implements transport.Host.
func (p *port) Describe(key transport.LocalKey, descriptor transport.Descriptor) {
	if p.keys == nil {
		p.engine.log.Error("a descriptor is replaced, and Info.Replaces is false", "transport", p.name)
		return
	}
	if r := p.keys.replace(key, descriptor); r != nil {
		p.engine.describedAnew(r)
	}
}

// replace gives the region with a key another descriptor, and returns it. It returns nil for a key that Register has
// not returned yet, or that has ended.
func (k *ownKeys) replace(key transport.LocalKey, by transport.Descriptor) *region {
	k.mu.Lock()
	defer k.mu.Unlock()
	r := k.regions[key]
	switch {
	case r != nil:
		r.on[k.port.index].Store(k.port.registered(key, by))
	case k.registering > 0:
		k.earlier[key] = by
	}
	return r
}

// describedAnew makes those that import a region ask for it again: peers, and our own end.
func (e *Engine) describedAnew(r *region) {
	e.regions.touch(r.ID)
	e.changes.announce(e.describedEpoch())
	e.renewals.refresh(e.segments.peersWith(e.credentials.ID()))
}
