// Package security names the engines and decides which of them are believed. It holds an engine's key, makes the TLS
// connections of the control plane with it, and knows whom each mode admits.
//
//	mode         certificates                          admitted                                listens on
//	local        self-signed, made at start            processes of this host and our user     loopback
//	cluster_key  issued by the authority in the key    holders of the key file                 any address
//	mtls         issued by the engine's own            identities that are listed              any address
//	insecure     self-signed                           anybody                                 any address
//
// Every connection is TLS 1.3 and mutual, in every mode. An engine is named by the first 16 bytes of the SHA-256 of its
// public key (transport.ID). The handshake proves that both ends own their keys, so nobody bears the name of another
// one, and no message has to name its sender. Keys are Ed25519, made at start, and never leave memory: an engine that
// starts again is another one.
//
// # Local
//
// The certificate proves nothing about a person, so the kernel is asked: the socket at the other end must be one of
// this network namespace, and belong to a user that is admitted (owner.go). Both ends ask, before a byte is believed.
// This keeps out nobody with the right to debug our process (root, or our own user), and a program of ours that
// forwards connections lends its user to its clients.
//
// # Cluster key
//
// The bytes of a file are the secret of a cluster. Each engine derives the same certificate authority from them, and
// issues a certificate to itself (cluster.go). Nothing is installed, renewed or asked for. Everybody with the file is a
// member.
//
// # mTLS
//
// An authority of the user issues a certificate with SPIFFE or DNS identities to each engine, and security/allow lists
// those that are admitted (mtls.go). The engine's key of above stays the one that TLS proves: the certificate's key
// signs it. So files are replaced while the engine runs, and it stays the same engine to its peers.
//
// # Where to read
//
//	security handshake   an engine's key and rules, and a connection that proves both ends
//	owner tables         mode local: the owner of a socket, by sock_diag(7) or by the kernel's tables
//	cluster mtls         the certificates of the other modes, and files that are replaced
//	names barred         patterns of identities, and engines that are kept out by name
//
// The package starts no goroutine. Its locks are leaves, but for Credentials.loading, which is held while files are
// read.
package security

import (
	"crypto/ed25519"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"fmt"
	"math/big"
	"net/netip"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/transport"
)

// Mode says whom an engine admits.
type Mode string

// Modes.
const (
	Local      Mode = "local"
	ClusterKey Mode = "cluster_key"
	MTLS       Mode = "mtls"
	Insecure   Mode = "insecure"
)

// Settings choose the mode: Insecure, else ClusterKey if it is set, else MTLS if a file or a pattern of it is
// set, else Local.
type Settings struct {
	ClusterKey string   // path of the key file
	Files      Files    // of mode mtls
	Allow      []string // patterns of identities that mode mtls admits, see Names
	LocalUsers []string // names or numbers of users that Local admits beside our own; "any" is all of them
	Insecure   bool
}

// Credentials are an engine's key and its rules. Any goroutine may use them, and every way to print them leaves the key
// out. Reload replaces the parts from files of mode mtls; the rest is immutable.
type Credentials struct {
	mode     Mode
	id       transport.ID
	private  ed25519.PrivateKey
	identity string // of every peer in mode cluster_key
	users    users  // in mode local
	files    Files
	allow    atomic.Pointer[Names] // in mode mtls
	shows    atomic.Pointer[shown]
	loading  sync.Mutex // one Reload at a time
	rules    atomic.Uint64
	barred   barred
}

// shown is the certificate that peers see, and the authorities that we believe. It is immutable.
type shown struct {
	own   tls.Certificate
	roots *x509.CertPool // of the cluster or of mode mtls; nil in the others
	until time.Time      // the end of own; zero for none
	state fileStates     // of the files of mode mtls
}

// Open makes the credentials of one engine. The error is InvalidArgument for a file that is missing, malformed or
// readable by others, for patterns that match no identity, and for a user that there is not.
func Open(s Settings) (*Credentials, error) {
	public, private, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		return nil, errs.Wrap(errs.Internal, "security", err)
	}
	info, err := x509.MarshalPKIXPublicKey(public)
	if err != nil {
		return nil, errs.Wrap(errs.Internal, "security", err)
	}
	c := &Credentials{mode: Local, private: private, id: nameOf(info)}
	switch {
	case s.Insecure:
		c.mode = Insecure
		err = c.show(nil, nil)
	case s.ClusterKey != "":
		c.mode = ClusterKey
		err = c.joinCluster(s.ClusterKey)
	case s.Files != (Files{}) || len(s.Allow) > 0:
		c.mode, c.files = MTLS, s.Files
		_, err = c.Reload(append([]string{}, s.Allow...))
	default:
		if c.users, err = parseUsers(s.LocalUsers, os.Geteuid()); err == nil {
			err = c.show(nil, nil)
		}
	}
	if err != nil {
		return nil, err
	}
	return c, nil
}

// show makes a certificate of the engine's key the one that peers see. It is issued by an authority, or by itself for
// nil.
func (c *Credentials) show(by *authority, roots *x509.CertPool) error {
	own, err := c.issue(by)
	if err != nil {
		return err
	}
	c.shows.Store(&shown{own: own, roots: roots})
	return nil
}

// issue makes a certificate of the engine's key.
func (c *Credentials) issue(by *authority) (tls.Certificate, error) {
	leaf := certificate("tent engine")
	leaf.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}
	leaf.KeyUsage = x509.KeyUsageDigitalSignature
	if by == nil {
		by = &authority{leaf, c.private}
	}
	der, err := x509.CreateCertificate(rand.Reader, leaf, by.certificate, c.private.Public(), by.private)
	if err != nil {
		return tls.Certificate{}, errs.Wrap(errs.Internal, "security", err)
	}
	own, err := x509.ParseCertificate(der)
	if err != nil {
		return tls.Certificate{}, errs.Wrap(errs.Internal, "security", err)
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: c.private, Leaf: own}, nil
}

// certificate is a template without an end (RFC 5280, section 4.1.2.5): its key lives as long as the process. So
// hosts with wrong clocks still meet.
func certificate(name string) *x509.Certificate {
	return &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: name},
		NotBefore: time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC),
		NotAfter:  time.Date(9999, 12, 31, 23, 59, 59, 0, time.UTC)}
}

// nameOf returns the ID of the owner of a public key.
func nameOf(publicKeyInfo []byte) transport.ID {
	sum := sha256.Sum256(publicKeyInfo)
	return transport.ID(sum[:len(transport.ID{})])
}

// ID is the name of the engine.
func (c *Credentials) ID() transport.ID { return c.id }

// Mode says whom the engine admits.
func (c *Credentials) Mode() Mode { return c.mode }

// String returns mode and ID.
func (c *Credentials) String() string { return fmt.Sprintf("%s %s", c.mode, c.id) }

// GoString keeps %#v from printing the key.
func (c *Credentials) GoString() string { return c.String() }

// MayListen reports whether the mode protects a listener on an address that a setting names. The error is
// InvalidArgument.
func (c *Credentials) MayListen(setting string, address netip.Addr) error {
	if c.mode != Local || address.Unmap().IsLoopback() {
		return nil
	}
	return errs.New(errs.InvalidArgument, "listen",
		"%s is %v, which other hosts may reach, and nothing says whom to admit", setting, address).
		WithScope(errs.ScopeTransport, errs.SideLocal).
		WithHint(`set security to {"cluster_key": path} to admit the holders of one key file, or its ca, cert, key and ` +
			"allow to admit certificates; insecure=true would admit anybody")
}
