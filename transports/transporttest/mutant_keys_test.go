package transporttest_test

import (
	"context"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/mem"
	"github.com/tent-engine/tent/gocore/transport"
)

// openLibrary plays a vendor's library, which keeps a descriptor for as long as the process lives.
var openLibrary = sync.OnceFunc(func() { _, _ = unix.Open("/dev/null", unix.O_RDONLY|unix.O_CLOEXEC, 0) })

func (m *mutant) Register(ctx context.Context, r mem.Region) (transport.LocalKey, transport.Descriptor, error) {
	switch {
	case m.name == "registers after Close" && m.isClosed():
		return 1, nil, nil
	case m.name == "registers memory once":
		return m.registerOnce(ctx, r)
	case m.name == "forgets permissions":
		r.Permission = mem.GlobalReadWrite
	case m.name == "takes what is not here" && r.Kind != mem.Cuda:
		r.Kind = mem.Host
	case m.name == "blames who asked" && r.Kind == mem.Tpu:
		return 0, nil, errs.New(errs.InvalidArgument, "mutant", "no memory of a TPU")
	}
	key, d, err := m.Transport.Register(ctx, r)
	m.mu.Lock()
	m.all = append(m.all, key)
	m.mu.Unlock()
	return key, d, err
}

func (m *mutant) isClosed() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.closed
}

// registered is an answer of Register.
type registered struct {
	key        transport.LocalKey
	descriptor transport.Descriptor
}

// registerOnce finds the memory at an address that it has registered before.
func (m *mutant) registerOnce(ctx context.Context, r mem.Region) (transport.LocalKey, transport.Descriptor, error) {
	m.mu.Lock()
	before, is := m.keys[r.Addr]
	m.mu.Unlock()
	if is {
		return before.key, before.descriptor, nil
	}
	key, d, err := m.Transport.Register(ctx, r)
	m.mu.Lock()
	m.keys[r.Addr] = registered{key, d}
	m.mu.Unlock()
	return key, d, err
}

func (m *mutant) Deregister(ctx context.Context, key transport.LocalKey) error {
	if m.name == "forgets to deregister" {
		return nil
	}
	return m.Transport.Deregister(ctx, key)
}

func (m *mutant) Revoke(ctx context.Context, key transport.LocalKey, peer *transport.Peer,
	epoch transport.Epoch) error {
	switch m.name {
	case "forgets Revoke":
		if epoch == transport.ForGood {
			return nil
		}
	case "revokes everything":
		m.mu.Lock()
		all := m.all
		m.mu.Unlock()
		for _, other := range all {
			_ = m.Transport.Revoke(ctx, other, peer, epoch)
		}
	case "revokes what never was":
		_ = m.Transport.Revoke(ctx, key, peer, epoch)
		return nil
	case "closes at a fence":
		epoch = transport.ForGood
	case "fences everybody":
		peer = nil
	case "fences whom it should shut out":
		if epoch == transport.ForGood && peer != nil {
			epoch = 1
		}
	case "fences by word alone":
		if epoch != transport.ForGood {
			return nil
		}
	}
	return m.Transport.Revoke(ctx, key, peer, epoch)
}

func (m *mutant) Import(l transport.Link, d transport.Descriptor) (transport.RemoteKey, error) {
	if m.name == "takes a link by its index" {
		l = m.newest(l)
	}
	key, err := m.Transport.Import(l, d)
	switch {
	case m.name == "takes any descriptor" && err != nil:
		return 1 << 20, nil
	case m.name == "gives a forgotten key again" && m.forgotten != 0:
		m.alias = map[transport.RemoteKey]transport.RemoteKey{m.forgotten: key}
		return m.forgotten, err
	case m.name == "keeps the key of the replaced":
		if first := m.alias[0]; first != 0 {
			return first, err
		}
		m.alias = map[transport.RemoteKey]transport.RemoteKey{0: key}
	}
	return key, err
}

func (m *mutant) Forget(l transport.Link, key transport.RemoteKey) {
	m.forgotten = key
	m.Transport.Forget(l, key)
}
