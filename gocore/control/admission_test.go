package control

import (
	"context"
	"crypto"
	"crypto/ed25519"
	"crypto/hkdf"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"io"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/tent-engine/tent/gocore/control/controlpb"
	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/security"
	"github.com/tent-engine/tent/gocore/transport"
)

// clusterKey writes a key file; equal letters are equal keys.
func clusterKey(t testing.TB, letter byte) (path string, secret []byte) {
	secret = make([]byte, 32)
	for i := range secret {
		secret[i] = letter
	}
	path = filepath.Join(t.TempDir(), "cluster.key")
	require.NoError(t, os.WriteFile(path, secret, 0o600))
	return path, secret
}

// inCluster makes a node a member of a cluster.
func inCluster(t testing.TB, letter byte) func(*Options) {
	path, _ := clusterKey(t, letter)
	return func(o *Options) { o.Credentials = newCredentials(t, security.Settings{ClusterKey: path}) }
}

// refusals collects the reasons for which a node refuses others.
type refusals struct {
	mu   sync.Mutex
	list []string
	from []string
	last transport.Refusal
}

func (r *refusals) note(reason transport.Refusal, from string, cause error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.from = append(r.from, from)
	r.list, r.last = append(r.list, cause.Error()), reason
}

func (r *refusals) came(t *testing.T, reason transport.Refusal, text string) {
	t.Helper()
	require.Eventually(t, func() bool {
		r.mu.Lock()
		defer r.mu.Unlock()
		return len(r.list) > 0
	}, patience, time.Millisecond)
	require.Equal(t, reason, r.last)
	require.Contains(t, r.list[0], text)
}

func TestModesAdmitEachOther(t *testing.T) {
	checkLeaks(t)
	own := func(*Options) {}
	anybody := func(o *Options) { o.Credentials = newCredentials(t, security.Settings{Insecure: true}) }
	for _, c := range []struct {
		name     string
		from, to func(*Options)
		refused  string // "" for nobody, else the reason in the log of the other side, or of our own
		byUs     bool
	}{
		{"local and local", own, own, "", false},
		{"one key", inCluster(t, 'a'), inCluster(t, 'a'), "", false},
		{"insecure and insecure", anybody, anybody, "", false},
		{"insecure at a local engine of our user", anybody, own, "", false},
		{"two keys", inCluster(t, 'a'), inCluster(t, 'b'), "does not hold the key file", true},
		{"a key at a local engine", inCluster(t, 'a'), own, "does not hold the key file", true},
		{"no key", own, inCluster(t, 'a'), "does not hold the key file", false},
		{"insecure without the key", anybody, inCluster(t, 'a'), "does not hold the key file", false},
	} {
		t.Run(c.name, func(t *testing.T) {
			var seen refusals
			a, b := start(t, "127.0.0.1:0", c.from), start(t, "127.0.0.1:0", c.to,
				func(o *Options) { o.Refused = seen.note })
			peer, err := a.client.Open(within(t), b.self.Address)
			if c.refused == "" {
				require.NoError(t, err)
				require.Equal(t, b.options.Credentials.ID(), peer.ID)
				return
			}
			t.Log(err)
			require.Equal(t, errs.PeerNotAdmitted, errs.CodeOf(err), "%v", err)
			require.ErrorContains(t, err, b.self.Address)
			require.ErrorContains(t, err, "security")
			if c.byUs {
				require.ErrorContains(t, err, c.refused)
				seen.came(t, transport.RefusedIdentity, "bad certificate")
			} else {
				require.ErrorContains(t, err, "its log has the reason")
				seen.came(t, transport.RefusedIdentity, c.refused)
			}
		})
	}
}

// signed makes a key and a certificate of it, issued by parent, or by itself.
func signed(t *testing.T, parent *x509.Certificate, by ed25519.PrivateKey,
	change func(*x509.Certificate)) tls.Certificate {
	public, private, err := ed25519.GenerateKey(rand.Reader)
	require.NoError(t, err)
	template := &x509.Certificate{SerialNumber: big.NewInt(7), Subject: pkix.Name{CommonName: "test"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour)}
	change(template)
	if parent == nil {
		parent, by = template, private
	}
	der, err := x509.CreateCertificate(rand.Reader, template, parent, public, by)
	require.NoError(t, err)
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: private}
}

// clusterAuthority derives the authority of a key as the package security documents it, with the standard library
// alone.
func clusterAuthority(t *testing.T, secret []byte) (*x509.Certificate, ed25519.PrivateKey) {
	seed, err := hkdf.Key(sha256.New, secret, nil, "tent ca", ed25519.SeedSize)
	require.NoError(t, err)
	private := ed25519.NewKeyFromSeed(seed)
	template := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "tent cluster"},
		IsCA: true, BasicConstraintsValid: true, NotAfter: time.Now().Add(time.Hour)}
	der, err := x509.CreateCertificate(rand.Reader, template, template, private.Public(), private)
	require.NoError(t, err)
	made, err := x509.ParseCertificate(der)
	require.NoError(t, err)
	return made, private
}

// handshake is a client's attempt, and its end in the log of the server.
type handshake struct {
	name   string
	change func(*tls.Config) // of a member's attempt
	reason transport.Refusal
	text   string // "" is admitted
}

// handshakes lists attempts at an engine of a cluster. The first one is admitted, which shows that the others are
// refused for their own fault.
func handshakes(t *testing.T, authority *x509.Certificate, by ed25519.PrivateKey, secret []byte) []handshake {
	foreign, byForeign := clusterAuthority(t, append(secret, 1))
	return []handshake{
		{"a member", func(*tls.Config) {}, 0, ""},
		{"another authority", func(c *tls.Config) { c.Certificates[0] = signed(t, foreign, byForeign, leaf) },
			transport.RefusedIdentity, "does not hold the key file"},
		{"self-signed", func(c *tls.Config) { c.Certificates[0] = signed(t, nil, nil, leaf) },
			transport.RefusedIdentity, "does not hold the key file"},
		{"the authority's name and a key of its own", func(c *tls.Config) {
			c.Certificates[0] = signed(t, nil, nil, func(x *x509.Certificate) { x.Subject = authority.Subject })
		}, transport.RefusedIdentity, "does not hold the key file"},
		{"expired", func(c *tls.Config) {
			c.Certificates[0] = signed(t, authority, by, func(x *x509.Certificate) {
				x.NotBefore, x.NotAfter = time.Now().Add(-2*time.Hour), time.Now().Add(-time.Hour)
			})
		}, transport.RefusedIdentity, "expired"},
		{"not valid yet", func(c *tls.Config) {
			c.Certificates[0] = signed(t, authority, by, func(x *x509.Certificate) {
				x.NotBefore, x.NotAfter = time.Now().Add(time.Hour), time.Now().Add(2*time.Hour)
			})
		}, transport.RefusedIdentity, "not yet valid"},
		{"issued by a member", func(c *tls.Config) {
			member := signed(t, authority, by, leaf)
			parent, err := x509.ParseCertificate(member.Certificate[0])
			require.NoError(t, err)
			issued := signed(t, parent, member.PrivateKey.(ed25519.PrivateKey), leaf)
			issued.Certificate = append(issued.Certificate, member.Certificate[0])
			c.Certificates[0] = issued
		}, transport.RefusedIdentity, "does not hold the key file"},
		{"the certificate of another member without its key", func(c *tls.Config) {
			_, other, err := ed25519.GenerateKey(rand.Reader)
			require.NoError(t, err)
			c.Certificates[0].PrivateKey = stubborn{c.Certificates[0].PrivateKey.(ed25519.PrivateKey), other}
		}, transport.RefusedMalformed, "invalid signature"},
		{"no certificate", func(c *tls.Config) { c.Certificates = nil }, transport.RefusedMalformed,
			"didn't provide a certificate"},
		{"TLS 1.2", func(c *tls.Config) { c.MaxVersion = tls.VersionTLS12 }, transport.RefusedMalformed,
			"unsupported versions"},
		{"no protocol", func(c *tls.Config) { c.NextProtos = nil }, transport.RefusedIdentity,
			"did not ask for the protocol"},
		{"another protocol", func(c *tls.Config) { c.NextProtos = []string{"h2"} }, transport.RefusedMalformed,
			"unsupported application protocols"},
	}
}

func leaf(*x509.Certificate) {}

// TestHandshakes speaks TLS to a member of a cluster with the standard library alone.
func TestHandshakes(t *testing.T) {
	checkLeaks(t)
	path, secret := clusterKey(t, 'k')
	authority, by := clusterAuthority(t, secret)
	for _, c := range handshakes(t, authority, by, secret) {
		t.Run(c.name, func(t *testing.T) {
			var seen refusals
			b := start(t, "127.0.0.1:0", func(o *Options) {
				o.Credentials, o.Refused = newCredentials(t, security.Settings{ClusterKey: path}), seen.note
			})
			config := &tls.Config{NextProtos: []string{"tent/1"}, InsecureSkipVerify: true,
				MinVersion: tls.VersionTLS12, Certificates: []tls.Certificate{signed(t, authority, by, leaf)}}
			c.change(config)
			shown, err := callOver(t, b, config)
			if c.text == "" {
				require.NoError(t, err)
				require.Equal(t, b.options.Credentials.ID(), shown)
				return
			}
			require.Error(t, err)
			seen.came(t, c.reason, c.text)
		})
	}
}

// A probe that connects and leaves is no refusal; one that sends rubbish is one of its host, not of its port.
func TestProbesOfThePortAreNoRefusals(t *testing.T) {
	checkLeaks(t)
	var seen refusals
	b := start(t, "127.0.0.1:0", func(o *Options) { o.Refused = seen.note })
	for range 3 {
		conn, err := net.Dial("tcp", b.self.Address)
		require.NoError(t, err)
		require.NoError(t, conn.Close())
	}
	require.Eventually(t, func() bool { return b.server.guests.count() == 0 }, patience, time.Millisecond)
	require.Empty(t, seen.list)
	_, err := callOver(t, b, nil)
	require.Error(t, err)
	seen.came(t, transport.RefusedMalformed, "does not look like a TLS handshake")
	require.Equal(t, []string{"127.0.0.1"}, seen.from)
}

func TestPlainConnectionsAreRefused(t *testing.T) {
	checkLeaks(t)
	var seen refusals
	b := start(t, "127.0.0.1:0", func(o *Options) { o.Refused = seen.note })
	_, err := callOver(t, b, nil)
	require.Error(t, err)
	seen.came(t, transport.RefusedMalformed, "does not look like a TLS handshake")
}

// stubborn signs with another key than the one it shows.
type stubborn struct{ shown, used ed25519.PrivateKey }

func (s stubborn) Public() crypto.PublicKey { return s.shown.Public() }

func (s stubborn) Sign(random io.Reader, digest []byte, o crypto.SignerOpts) ([]byte, error) {
	return s.used.Sign(random, digest, o)
}

// plainStub is a gRPC client over a connection that is ready to use.
func plainStub(t *testing.T, conn net.Conn) controlpb.ControlClient {
	once := make(chan net.Conn, 1)
	once <- conn
	cc, err := grpc.NewClient("passthrough:///peer", grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(context.Context, string) (net.Conn, error) {
			select {
			case c := <-once:
				return c, nil
			default:
				return nil, net.ErrClosed
			}
		}))
	require.NoError(t, err)
	t.Cleanup(func() { cc.Close() })
	return controlpb.NewControlClient(cc)
}

// callOver probes a node over TLS of one's own, or over plain TCP, and returns the ID in the node's certificate.
func callOver(t *testing.T, to *node, config *tls.Config) (id transport.ID, err error) {
	raw, err := net.Dial("tcp", to.self.Address)
	require.NoError(t, err)
	defer raw.Close()
	conn := raw
	if config != nil {
		secure := tls.Client(raw, config)
		if err := secure.HandshakeContext(within(t)); err != nil {
			return id, err
		}
		sum := sha256.Sum256(secure.ConnectionState().PeerCertificates[0].RawSubjectPublicKeyInfo)
		id, conn = transport.ID(sum[:16]), secure
	}
	_, err = plainStub(t, conn).Probe(within(t), &controlpb.ProbeRequest{})
	return id, err
}

// TestNoMessageChangesWhoCalls sends every method in the name of another engine: its address, its machine, and its ID
// where messages once had one. A handler sees the ID that the connection proves.
func TestNoMessageChangesWhoCalls(t *testing.T) {
	checkLeaks(t)
	b, victim, attacker := start(t, "127.0.0.1:0"), start(t, "127.0.0.1:0"), newCredentials(t)
	var seen []transport.Peer
	note := func(from transport.Peer) { seen = append(seen, from) }
	b.describe = func(_ context.Context, from transport.Peer, _ uint64, _ bool) (*Offer, error) {
		note(from)
		return nil, nil
	}
	b.serve = func(_ context.Context, from transport.Peer, _ string, _ []byte) ([]byte, error) {
		note(from)
		return nil, nil
	}
	b.notified = func(_ context.Context, from transport.Peer, _ uint64, _ []byte) error { note(from); return nil }
	raw, err := net.Dial("tcp", b.self.Address)
	require.NoError(t, err)
	defer raw.Close()
	conn, shown, err := attacker.Connect(within(t), raw)
	require.NoError(t, err)
	require.Equal(t, b.self.ID, shown.ID)
	stub := plainStub(t, conn)
	for who, claimed := range map[string]transport.Peer{"another engine": victim.self, "the engine itself": b.self} {
		from := toIdentity(claimed)
		from.ProtoReflect().SetUnknown(protowire.AppendBytes(protowire.AppendTag(nil, 5, protowire.BytesType),
			claimed.ID[:]))
		call := &controlpb.Call{From: from}
		for method, send := range map[string]func() error{
			"Hello": func() error { _, err := stub.Hello(within(t), &controlpb.HelloRequest{From: from}); return err },
			"Describe": func() error {
				_, err := stub.Describe(within(t), &controlpb.DescribeRequest{Call: call})
				return err
			},
			"Transport": func() error {
				_, err := stub.Transport(within(t), &controlpb.TransportRequest{Call: call, Transport: "tcp"})
				return err
			},
			"Notify": func() error {
				_, err := stub.Notify(within(t), &controlpb.NotifyRequest{Call: call})
				return err
			},
			"Probe": func() error { _, err := stub.Probe(within(t), &controlpb.ProbeRequest{Call: call}); return err },
		} {
			seen = nil
			require.NoError(t, send(), method)
			for _, from := range seen {
				require.Equal(t, attacker.ID(), from.ID, "%s as %s", method, who)
				require.Equal(t, shown.Identity, from.Identity)
				require.False(t, from.Self, "%s as %s", method, who)
			}
			require.Equal(t, method != "Hello" && method != "Probe", len(seen) == 1, method)
		}
	}
}

// TestAPinnedEngineIsTheOneThatIsMeant shows that a call says nothing to another engine at the address.
func TestAPinnedEngineIsTheOneThatIsMeant(t *testing.T) {
	checkLeaks(t)
	a, b, c := start(t, "127.0.0.1:0"), start(t, "127.0.0.1:0"), start(t, "127.0.0.1:0")
	b.serve = func(context.Context, transport.Peer, string, []byte) ([]byte, error) {
		t.Error("the message reached another engine")
		return nil, nil
	}
	_, err := a.client.Call(within(t), at(b.self.Address, c), "tcp", []byte("for c"))
	require.Equal(t, errs.PeerRestarted, errs.CodeOf(err))
}

// BenchmarkOpen dials, proves both keys and says hello, at both ends in one process.
func BenchmarkOpen(b *testing.B) {
	x, y := start(b, "127.0.0.1:0"), start(b, "127.0.0.1:0")
	before := processTime(b)
	for b.Loop() {
		open(b, x, y)
		x.client.Forget(y.self.Address)
	}
	b.ReportMetric(float64((processTime(b)-before).Nanoseconds())/float64(b.N), "cpu-ns/op")
}

// An engine that is kept out may have a connection that nobody saw when the others were closed. Its next call is
// refused, and the connection ends.
func TestAnEngineThatIsKeptOutCallsNoMore(t *testing.T) {
	checkLeaks(t)
	a, b := start(t, "127.0.0.1:0"), start(t, "127.0.0.1:0")
	peer := open(t, a, b)
	_, err := a.client.Call(within(t), peer, "tcp", []byte("before"))
	require.NoError(t, err)
	require.NoError(t, b.options.Credentials.Bar(a.self.ID))
	_, err = a.client.Call(within(t), peer, "tcp", []byte("after"))
	require.Equal(t, errs.PeerNotAdmitted, errs.CodeOf(err), "%v", err)
	require.Eventually(t, func() bool { return b.server.guests.count() == 0 }, patience, time.Millisecond)
}
