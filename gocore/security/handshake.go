package security

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"os"
	"time"

	"github.com/tent-engine/tent/gocore/transport"
)

// protocol is tent's name in TLS (ALPN, RFC 7301). A program that speaks TLS for another purpose does not get in by
// mistake, and is not taken for a peer.
const protocol = "tent/1"

// Proof is the name of the other end of a connection, as its handshake proves it.
type Proof struct {
	ID transport.ID
	// Identity is "uid:1000" in mode local, "cluster:" and the fingerprint of the authority in mode cluster_key, and ""
	// in mode insecure. In mode mtls it has the SPIFFE ID and the DNS names of the certificate, separated by spaces.
	Identity string
	Until    time.Time // the end of the certificate; zero for none

	chain []*x509.Certificate // of mode mtls, see Credentials.Still
	made  time.Time           // in mode mtls
}

// IsOlder reports whether a proof of mode mtls is of an older handshake than another one.
func (p Proof) IsOlder(than Proof) bool { return p.made.Before(than.made) }

// NotAdmitted is the error of a handshake with somebody whom the mode does not admit.
type NotAdmitted struct {
	Reason   string
	Foreign  bool // it did not agree to speak tent's protocol
	unowned  bool // the socket at the other end belongs to nobody: it may have been closed
	unlisted bool // its certificate is good, and has no identity of security/allow
}

// Unlisted reports whether a peer was refused by security/allow, and for no other reason.
func Unlisted(err error) bool {
	var refused *NotAdmitted
	return errors.As(err, &refused) && refused.unlisted
}

// Error returns the reason.
func (e *NotAdmitted) Error() string { return e.Reason }

func refuse(format string, args ...any) error {
	return &NotAdmitted{Reason: fmt.Sprintf(format, args...)}
}

// tlsConfig is the configuration of one handshake, which writes its proof into proof. The library's own verification is
// by host name, which says nothing here; verify takes its place. There are no tickets, so that each connection proves
// all of it. Our certificate is that of the moment in which it is shown: of handshakes that overlap, the one that ends
// last has the newest.
func (c *Credentials) tlsConfig(usage x509.ExtKeyUsage, proof *Proof) *tls.Config {
	now, own := c.shows.Load(), func() (*tls.Certificate, error) { return &c.shows.Load().own, nil }
	return &tls.Config{MinVersion: tls.VersionTLS13, NextProtos: []string{protocol},
		GetCertificate:       func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return own() },
		GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return own() },
		ClientAuth:           tls.RequireAnyClientCert, InsecureSkipVerify: true,
		VerifyConnection: func(state tls.ConnectionState) (err error) {
			*proof, err = c.verify(now, state, usage)
			return err
		}, SessionTicketsDisabled: true}
}

// verify refuses a peer that speaks another protocol, or one without a certificate that the mode believes. A proof of
// the peer's key is part of TLS. Usage is the peer's part in the connection.
func (c *Credentials) verify(now *shown, state tls.ConnectionState, usage x509.ExtKeyUsage) (Proof, error) {
	chain := state.PeerCertificates
	switch {
	case len(chain) == 0:
		return Proof{}, refuse("it showed no certificate")
	case state.NegotiatedProtocol != protocol:
		return Proof{}, &NotAdmitted{Reason: "it did not ask for the protocol " + protocol, Foreign: true}
	}
	proof := Proof{ID: nameOf(chain[0].RawSubjectPublicKeyInfo), Identity: c.identity}
	if c.Barred(proof.ID) {
		return proof, errBarred
	}
	switch c.mode {
	case ClusterKey:
		return proof, verifyMember(now.roots, chain[0])
	case MTLS:
		var err error
		proof.chain, proof.made = chain, time.Now()
		proof.Identity, proof.Until, err = c.verifyIssued(now, chain, usage, proof.made)
		return proof, err
	}
	return proof, nil
}

// verifyMember refuses a certificate that the authority of our cluster has not issued.
func verifyMember(roots *x509.CertPool, leaf *x509.Certificate) error {
	_, err := leaf.Verify(x509.VerifyOptions{Roots: roots, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageAny}})
	if err == nil {
		return nil
	}
	var foreign x509.UnknownAuthorityError
	if errors.As(err, &foreign) {
		return refuse("it does not hold the key file of our cluster, security/cluster_key")
	}
	return refuse("its certificate is not valid: %v", err)
}

// accessDenied is TLS's alert of that name (RFC 8446, section 6) in a record of its own: all that a stranger hears.
var accessDenied = []byte{21, 3, 3, 0, 2, 2, AlertAccessDenied}

// AlertAccessDenied is the number of the alert by which a peer says that it does not admit us.
const AlertAccessDenied = 49

// Accept carries out the handshake of a connection that was accepted, until the connection's deadline. The error is
// *NotAdmitted where the mode refuses the other end. The caller closes raw after an error.
func (c *Credentials) Accept(raw net.Conn) (net.Conn, Proof, error) {
	var identity string
	if c.mode == Local { // first: a foreign process must not cost us a handshake
		var err error
		if identity, err = c.users.admit(raw); err != nil {
			_, _ = raw.Write(accessDenied) // a courtesy: the other side may have gone
			return nil, Proof{}, lastWord(raw, time.Millisecond, err)
		}
	}
	var proof Proof
	secure := tls.Server(raw, c.tlsConfig(x509.ExtKeyUsageClientAuth, &proof))
	if err := secure.Handshake(); err != nil {
		return nil, Proof{}, err
	}
	if identity != "" {
		proof.Identity = identity
	}
	return secure, proof, nil
}

// Connect carries out the handshake of a connection that was dialled, within ctx. See Accept for the errors.
func (c *Credentials) Connect(ctx context.Context, raw net.Conn) (net.Conn, Proof, error) {
	var proof Proof
	secure := tls.Client(raw, c.tlsConfig(x509.ExtKeyUsageServerAuth, &proof))
	if err := secure.HandshakeContext(ctx); err != nil {
		return nil, Proof{}, err
	}
	if c.mode == Local { // afterwards: the kernel knows the owner of the other socket only when it was accepted
		identity, err := c.users.admit(raw)
		if err != nil {
			return nil, Proof{}, lastWord(secure, 100*time.Millisecond, err)
		}
		proof.Identity = identity
	}
	return secure, proof, nil
}

// lastWord returns the error of a connection that has ended meanwhile, else the one given: a socket that was closed has
// no owner any more. So it is with a peer that refuses our certificate, which says so and hangs up, with a probe, and
// with a peer that has begun to speak and could not wait for us, as this process was stopped.
func lastWord(conn net.Conn, within time.Duration, given error) error {
	var refused *NotAdmitted
	if !errors.As(given, &refused) || !refused.unowned || conn.SetReadDeadline(time.Now().Add(within)) != nil {
		return given
	}
	said := make([]byte, 512)
	for {
		switch _, err := conn.Read(said); {
		case errors.Is(err, os.ErrDeadlineExceeded):
			return given
		case err != nil:
			return err
		}
	}
}
