package control

import (
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"math/big"
	"net/url"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/security"
	"github.com/tent-engine/tent/gocore/security/securitytest"
	"github.com/tent-engine/tent/gocore/transport"
)

// withFiles makes a node one of mode mtls.
func withFiles(t testing.TB, f securitytest.Files, allow ...string) func(*Options) {
	return func(o *Options) {
		o.Credentials = newCredentials(t, security.Settings{Allow: allow,
			Files: security.Files{Certificate: f.Certificate, Key: f.Key, Authorities: f.Root}})
	}
}

// files writes the files of an engine.
func files(t testing.TB, own *securitytest.Authority, roots ...*securitytest.Authority) securitytest.Files {
	f := securitytest.NewFiles(t)
	f.Write(t, own, roots...)
	return f
}

// TestCertificatesAdmitTheirIdentities opens engines of mode mtls as a user does. The text on the wire is one for all
// reasons, and the log of the side that refuses has the reason.
func TestCertificatesAdmitTheirIdentities(t *testing.T) {
	checkLeaks(t)
	ca, other := securitytest.NewAuthority(t, nil), securitytest.NewAuthority(t, nil)
	const domain = "spiffe://prod/"
	decode := withFiles(t, files(t, ca.Issue(t, nil, domain+"decode/0"), ca), domain+"prefill/*", "dns:*.prefill.svc")
	ended := func(c *x509.Certificate) { c.NotAfter = time.Now().Add(-time.Minute) }
	for _, c := range []struct {
		name    string
		from    *securitytest.Authority
		refused string // "" for nobody, else the reason in the log of the other side
		shown   string
	}{
		{"a SPIFFE ID", ca.Issue(t, nil, domain+"prefill/7"), "", domain + "prefill/7"},
		{"a DNS name", ca.Issue(t, nil, "P-0.prefill.svc"), "", "dns:p-0.prefill.svc"},
		{"both", ca.Issue(t, nil, "x", domain+"prefill/7"), "", domain + "prefill/7 dns:x"},
		{"another authority", other.Issue(t, nil, domain+"prefill/7"), "no authority in security/ca", ""},
		{"expired", ca.Issue(t, ended, domain+"prefill/7"), "expired", ""},
		{"not valid yet", ca.Issue(t, func(c *x509.Certificate) { c.NotBefore = time.Now().Add(time.Minute) },
			domain+"prefill/7"), "not yet valid", ""},
		{"not listed", ca.Issue(t, nil, domain+"decode/7"), "does not list it: it is " + domain + "decode/7", ""},
		{"a longer name", ca.Issue(t, nil, domain+"prefill/7/x"), "does not list it", ""},
		{"another domain", ca.Issue(t, nil, "spiffe://test/prefill/7"), "does not list it", ""},
		{"for servers alone", ca.Issue(t, func(c *x509.Certificate) {
			c.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}
		}, domain+"prefill/7"), "is not for this use", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			var seen refusals
			a, b := start(t, "127.0.0.1:0", withFiles(t, files(t, c.from, ca), "*")), start(t, "127.0.0.1:0", decode,
				func(o *Options) { o.Refused = seen.note })
			greeting, err := a.client.Hello(within(t), b.self.Address)
			if c.refused != "" {
				require.Equal(t, errs.PeerNotAdmitted, errs.CodeOf(err), "%v", err)
				require.ErrorContains(t, err, "does not admit this one; its log has the reason")
				seen.came(t, transport.RefusedIdentity, c.refused)
				return
			}
			require.NoError(t, err)
			require.Equal(t, domain+"decode/0", greeting.Peer.Identity)
			require.Equal(t, b.options.Credentials.ID(), greeting.Peer.ID)
			require.WithinDuration(t, time.Now().Add(time.Hour), greeting.Proof.Until, time.Minute)
			var from transport.Peer
			b.serve = func(_ context.Context, caller transport.Peer, _ string, _ []byte) ([]byte, error) {
				from = caller
				return nil, nil
			}
			_, err = a.client.Call(within(t), greeting.Peer, "tcp", nil)
			require.NoError(t, err)
			require.Equal(t, c.shown, from.Identity)
		})
	}
}

// TestTheOpenerRefusesToo turns the direction round: the engine that is opened is not listed by the opener.
func TestTheOpenerRefusesToo(t *testing.T) {
	checkLeaks(t)
	var seen refusals
	ca := securitytest.NewAuthority(t, nil)
	a := start(t, "127.0.0.1:0", withFiles(t, files(t, ca.Issue(t, nil, "a"), ca), "dns:c"))
	b := start(t, "127.0.0.1:0", withFiles(t, files(t, ca.Issue(t, nil, "b"), ca), "*"),
		func(o *Options) { o.Refused = seen.note })
	_, err := a.client.Open(within(t), b.self.Address)
	require.Equal(t, errs.PeerNotAdmitted, errs.CodeOf(err))
	require.ErrorContains(t, err, "security/allow does not list it: it is dns:b")
	seen.came(t, transport.RefusedIdentity, "bad certificate")
}

// delegated signs a key of an engine by a certificate, as security does, with the standard library alone.
func delegated(t *testing.T, by *securitytest.Authority, chain ...*securitytest.Authority) tls.Certificate {
	public, private, err := ed25519.GenerateKey(rand.Reader)
	require.NoError(t, err)
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour)}
	der, err := x509.CreateCertificate(rand.Reader, template, by.Certificate, public, by.Key)
	require.NoError(t, err)
	made := tls.Certificate{Certificate: [][]byte{der}, PrivateKey: private}
	for _, each := range chain {
		made.Certificate = append(made.Certificate, each.Certificate.Raw)
	}
	return made
}

// TestForgedChainsAreRefused speaks TLS to an engine of mode mtls with the standard library alone. The first ones are
// admitted, which shows that the others are refused for their own fault.
func TestForgedChainsAreRefused(t *testing.T) {
	checkLeaks(t)
	ca := securitytest.NewAuthority(t, nil)
	between := securitytest.NewAuthority(t, ca)
	member, other := ca.Issue(t, nil, "a"), ca.Issue(t, nil, "a")
	direct := tls.Certificate{Certificate: [][]byte{member.Certificate.Raw}, PrivateKey: member.Key}
	far := between.Issue(t, nil, "a")
	odd := func(change func(*x509.Certificate)) tls.Certificate {
		one := ca.Issue(t, change, "a")
		return delegated(t, one, one)
	}
	for _, c := range []struct {
		name   string
		shows  *tls.Certificate
		change func(*tls.Config)
		reason transport.Refusal
		text   string // "" is admitted
	}{
		{"a member", ptr(delegated(t, member, member)), nil, 0, ""},
		{"over an intermediate", ptr(delegated(t, far, far, between)), nil, 0, ""},
		{"without the intermediate", ptr(delegated(t, far, far)), nil, transport.RefusedIdentity, "no authority"},
		{"without a delegation", &direct, nil, transport.RefusedIdentity, "no certificate of an authority"},
		{"another's certificate", ptr(delegated(t, other, member)), nil, transport.RefusedIdentity,
			"has not signed the key"},
		{"an authority's", ptr(delegated(t, between, between)), nil, transport.RefusedIdentity, "is an authority's"},
		{"no identity", ptr(odd(func(x *x509.Certificate) { x.DNSNames = nil })), nil, transport.RefusedIdentity,
			"has no identity"},
		{"a wildcard alone", ptr(odd(func(x *x509.Certificate) { x.DNSNames = []string{"*.svc"} })), nil,
			transport.RefusedIdentity, "has no identity"},
		{"two URIs", ptr(odd(func(x *x509.Certificate) {
			x.URIs = []*url.URL{{Scheme: "spiffe", Host: "a", Path: "/b"}, {Scheme: "spiffe", Host: "a", Path: "/c"}}
		})), nil, transport.RefusedIdentity, "SPIFFE allows one"},
		{"a URI that is no SPIFFE ID", ptr(odd(func(x *x509.Certificate) {
			x.URIs = []*url.URL{{Scheme: "spiffe", Host: "a", Path: "/../b"}}
		})), nil, transport.RefusedIdentity, "no SPIFFE ID"},
		{"self-signed", ptr(signed(t, nil, nil, leaf)), nil, transport.RefusedIdentity, "no certificate of an"},
		{"no certificate", nil, func(c *tls.Config) { c.Certificates = nil }, transport.RefusedMalformed,
			"didn't provide a certificate"},
		{"TLS 1.2", ptr(delegated(t, member, member)), func(c *tls.Config) { c.MaxVersion = tls.VersionTLS12 },
			transport.RefusedMalformed, "unsupported versions"},
		{"no protocol", ptr(delegated(t, member, member)), func(c *tls.Config) { c.NextProtos = nil },
			transport.RefusedIdentity, "did not ask for the protocol"},
	} {
		t.Run(c.name, func(t *testing.T) {
			var seen refusals
			b := start(t, "127.0.0.1:0", withFiles(t, files(t, ca.Issue(t, nil, "b"), ca), "*"),
				func(o *Options) { o.Refused = seen.note })
			config := &tls.Config{NextProtos: []string{"tent/1"}, InsecureSkipVerify: true,
				MinVersion: tls.VersionTLS12}
			if c.shows != nil {
				config.Certificates = []tls.Certificate{*c.shows}
			}
			if c.change != nil {
				c.change(config)
			}
			_, err := callOver(t, b, config)
			if c.text == "" {
				require.NoError(t, err)
				return
			}
			require.Error(t, err)
			seen.came(t, c.reason, c.text)
		})
	}
}

// Bytes without TLS are refused as in the other modes.
func TestPlainConnectionsAreRefusedByCertificates(t *testing.T) {
	checkLeaks(t)
	var seen refusals
	ca := securitytest.NewAuthority(t, nil)
	b := start(t, "127.0.0.1:0", withFiles(t, files(t, ca.Issue(t, nil, "b"), ca), "*"),
		func(o *Options) { o.Refused = seen.note })
	_, err := callOver(t, b, nil)
	require.Error(t, err)
	seen.came(t, transport.RefusedMalformed, "does not look like a TLS handshake")
}

func ptr(c tls.Certificate) *tls.Certificate { return &c }

// TestAConnectionEndsWithItsCertificate shows that the end of a certificate ends the connection. The next call makes a
// new one with the certificate of then, to the same engine.
func TestAConnectionEndsWithItsCertificate(t *testing.T) {
	checkLeaks(t)
	ca := securitytest.NewAuthority(t, nil)
	end := time.Now().Add(2 * time.Second)
	mine := files(t, ca.Issue(t, func(c *x509.Certificate) { c.NotAfter = end }, "a"), ca)
	a := start(t, "127.0.0.1:0", withFiles(t, mine, "*"))
	b := start(t, "127.0.0.1:0", withFiles(t, files(t, ca.Issue(t, nil, "b"), ca), "*"))
	peer, err := a.client.Open(within(t), b.self.Address)
	require.NoError(t, err)
	err = a.client.Probe(within(t), peer)
	require.NoError(t, err)
	require.True(t, b.server.Connected(a.self.ID))
	mine.Write(t, ca.Issue(t, nil, "a"), ca)
	changed, err := a.options.Credentials.Reload(nil)
	require.NoError(t, err)
	require.True(t, changed)
	require.Eventually(t, func() bool { return !b.server.Connected(a.self.ID) }, patience, time.Millisecond)
	require.False(t, time.Now().Before(end.Truncate(time.Second)), "not before the end")
	err = a.client.Probe(within(t), peer)
	require.NoError(t, err)
	require.True(t, b.server.Connected(a.self.ID), "it is the same engine")
}

// TestConnectionsOfBeforeKeepToTheRulesOfNow takes an identity off the list, or its authority out of the file, behind a
// handshake. A connection that has said Hello alone, or has made calls, carries no further one, in either direction.
func TestConnectionsOfBeforeKeepToTheRulesOfNow(t *testing.T) {
	checkLeaks(t)
	ca, next := securitytest.NewAuthority(t, nil), securitytest.NewAuthority(t, nil)
	for _, calls := range []bool{false, true} {
		for _, called := range []bool{false, true} {
			for name, change := range map[string]func(own securitytest.Files) []string{
				"list": func(securitytest.Files) []string { return []string{"dns:c"} },
				"authority": func(own securitytest.Files) []string {
					own.Write(t, ca.Issue(t, nil, "x"), next)
					return nil
				},
			} {
				t.Run(fmt.Sprintf("%s, by the called: %v, behind a call: %v", name, called, calls), func(t *testing.T) {
					var seen refusals
					mine, theirs := files(t, ca.Issue(t, nil, "a"), ca), files(t, ca.Issue(t, nil, "b"), ca)
					a := start(t, "127.0.0.1:0", withFiles(t, mine, "*"))
					b := start(t, "127.0.0.1:0", withFiles(t, theirs, "*"), func(o *Options) { o.Refused = seen.note })
					served := 0
					b.serve = func(context.Context, transport.Peer, string, []byte) ([]byte, error) {
						served++
						return nil, nil
					}
					peer := open(t, a, b)
					if calls {
						_, err := a.client.Call(within(t), peer, "tcp", nil)
						require.NoError(t, err)
					}
					by, own := a, mine
					if called {
						by, own = b, theirs
					}
					changed, err := by.options.Credentials.Reload(change(own))
					require.NoError(t, err)
					require.True(t, changed)
					before := served
					_, err = a.client.Call(within(t), peer, "tcp", nil)
					require.Equal(t, errs.PeerNotAdmitted, errs.CodeOf(err), "%v", err)
					require.Equal(t, before, served)
					require.Eventually(t, func() bool { return !b.server.Connected(a.self.ID) }, patience,
						time.Millisecond)
				})
			}
		}
	}
}

// TestRulesThatAdmitAPeerKeepItsConnection changes the list and the files, which admit the peer still.
func TestRulesThatAdmitAPeerKeepItsConnection(t *testing.T) {
	checkLeaks(t)
	ca, next := securitytest.NewAuthority(t, nil), securitytest.NewAuthority(t, nil)
	theirs, connections := files(t, ca.Issue(t, nil, "b"), ca), 0
	a := start(t, "127.0.0.1:0", withFiles(t, files(t, ca.Issue(t, nil, "a"), ca), "*"))
	b := start(t, "127.0.0.1:0", withFiles(t, theirs, "*"), func(o *Options) {
		o.Admitted = func(transport.Peer, security.Proof, bool) { connections++ }
	})
	peer := open(t, a, b)
	for _, allow := range [][]string{nil, {"dns:a"}, {"dns:*"}} {
		theirs.Write(t, ca.Issue(t, nil, "b"), ca, next)
		_, err := b.options.Credentials.Reload(allow)
		require.NoError(t, err)
		err = a.client.Probe(within(t), peer)
		require.NoError(t, err)
	}
	require.Equal(t, 1, connections)
}
