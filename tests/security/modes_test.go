package security

import (
	"context"
	"crypto/rand"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tent-engine/tent/gocore/control"
	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/security"
	"github.com/tent-engine/tent/gocore/security/securitytest"
	"github.com/tent-engine/tent/gocore/transport"
	"github.com/tent-engine/tent/transports/tcp"
	"github.com/tent-engine/tent/transports/transporttest"
)

// mode is a mode of admission. member returns the settings of one more engine, identity is a part of its name to peers.
type mode struct {
	name     security.Mode
	identity string
	member   func(t *testing.T) security.Settings
}

func modes(t *testing.T) []mode {
	key := filepath.Join(t.TempDir(), "cluster.key")
	secret := make([]byte, 32)
	_, err := rand.Read(secret)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(key, secret, 0o600))
	ca := securitytest.NewAuthority(t, nil)
	const domain = "spiffe://prod/"
	return []mode{
		{security.Local, fmt.Sprint("uid:", os.Getuid()), func(*testing.T) (s security.Settings) { return s }},
		{security.ClusterKey, "cluster", func(*testing.T) security.Settings {
			return security.Settings{ClusterKey: key}
		}},
		{security.MTLS, domain + "member", func(t *testing.T) security.Settings {
			f := securitytest.NewFiles(t)
			f.Write(t, ca.Issue(t, nil, domain+"member"), ca)
			return security.Settings{Allow: []string{domain + "*"},
				Files: security.Files{Certificate: f.Certificate, Key: f.Key, Authorities: f.Root}}
		}},
		{security.Insecure, "", func(*testing.T) security.Settings { return security.Settings{Insecure: true} }},
	}
}

// TestConformanceInEachMode runs the rules of the contract between nodes that each mode admits. They have real
// credentials, and a control plane over real connections, by which lanes get the secret that they prove.
//
// A transport knows a mode by Host.Call alone, with the ID and the identity that the connection proves. So the rules
// about peers are asked in each mode: refused keys, access that is revoked from one peer, incarnations, links. The
// others see slices, which have no field that a mode could change; they are asked once, in transports/tcp, and for
// lanes that sign and encrypt again there. The whole suite runs in each mode in `make test-all`. Between tcp and the
// other transports nothing of this differs: they get the same Peer from the same call.
//
// Keys of lanes that sign and encrypt come out of the connections that a mode makes. So the two are crossed with the
// modes, here once each, and all of them in `make test-all`.
func TestConformanceInEachMode(t *testing.T) {
	for _, m := range modes(t) {
		for _, p := range []transport.Protection{transport.Auth, transport.Sign, transport.Encrypt} {
			once := p == transport.Auth || p == transport.Sign && m.name == security.ClusterKey ||
				p == transport.Encrypt && m.name == security.MTLS
			if once || transporttest.Whole() {
				t.Run(fmt.Sprintf("%s/%s", m.name, p), func(t *testing.T) { m.conform(t, p) })
			}
		}
	}
}

// conform runs the rules between nodes of a mode, over lanes that a protection keeps.
func (m mode) conform(t *testing.T, p transport.Protection) {
	transporttest.Admitted(t, func(*testing.T) transporttest.Harness {
		return transporttest.Harness{Check: tcp.Factory{}.Check, Join: m.join, Protects: p,
			Open: func(t *testing.T, c transporttest.Config) transport.Transport {
				s := tcp.Settings{Addresses: []string{"127.0.0.1", "127.0.0.2"}[:min(c.Rails, 2)]}
				opened, err := tcp.Factory{}.Open(context.Background(), s, c.Host, c.Sink)
				require.NoError(t, err)
				return opened
			}}
	})
}

// plane is the control plane of a node of the suite. It answers calls of the transport and no others.
type plane struct {
	control.Handler
	t    *testing.T
	mode mode
	node *transporttest.Node
}

func (m mode) join(t *testing.T, n *transporttest.Node) transporttest.Plane {
	credentials, err := security.Open(m.member(t))
	require.NoError(t, err)
	require.Equal(t, m.name, credentials.Mode())
	n.Peer.ID = credentials.ID()
	options := control.Options{Self: func() transport.Peer { return n.Peer }, Credentials: credentials,
		Log: slog.New(slog.NewTextHandler(io.Discard, nil))}
	server, err := control.Listen([]string{"127.0.0.1:0"}, options)
	require.NoError(t, err)
	server.Start(&plane{t: t, mode: m, node: n})
	client := control.NewClient(options)
	return transporttest.Plane{Address: server.Addresses()[0],
		Call: func(ctx context.Context, to transport.Peer, message []byte) ([]byte, error) {
			return client.Call(ctx, to, tcp.Name, message)
		},
		Close: func() {
			client.Close()
			ctx, cancel := context.WithTimeout(context.Background(), time.Second)
			defer cancel()
			assert.NoError(t, server.Close(ctx))
		}}
}

// Serve implements control.Handler.
func (p *plane) Serve(ctx context.Context, from transport.Peer, name string, message []byte) ([]byte, error) {
	assert.Contains(p.t, from.Identity, p.mode.identity)
	assert.Equal(p.t, p.mode.identity == "", from.Identity == "", from.Identity)
	assert.NotEqual(p.t, p.node.Peer.ID, from.ID)
	if p.node.Transport == nil {
		return nil, errs.New(errs.PeerUnreachable, "call", "the node is being opened")
	}
	return p.node.Transport.Serve(ctx, from, message)
}
