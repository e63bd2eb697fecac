package transporttest_test

import (
	"sync"

	"golang.org/x/sys/unix"

	"github.com/tent-engine/tent/gocore/transport"
)

// openLibrary plays a vendor's library, which keeps a descriptor for as long as the process lives.
var openLibrary = sync.OnceFunc(func() { _, _ = unix.Open("/dev/null", unix.O_RDONLY|unix.O_CLOEXEC, 0) })

func (m *mutant) Import(l transport.Link, d transport.Descriptor) (transport.RemoteKey, error) {
	if m.name == "takes a link by its index" {
		l = m.newest(l)
	}
	key, err := m.Transport.Import(l, d)
	switch {
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
