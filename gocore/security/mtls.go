package security

import (
	"crypto"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/transport"
)

// In mode mtls an engine shows a chain that begins with two certificates:
//
//	the engine's key    made at start, proved by TLS        signed by the next one's key
//	the file's          security/cert, with its identities  issued by security/ca, over intermediates behind it
//
// The second one delegates to the first, as a proxy certificate of RFC 3820 does. It may be replaced, and so may its
// key: the engine's key, and so its ID, stays.

// Files are paths of PEM files.
type Files struct {
	Certificate string // of this engine, with intermediates behind it
	Key         string // of the certificate
	Authorities string // that issue the certificates of peers
}

// pemMax bounds a PEM file.
const pemMax = 1 << 20

// fileStates are the signs by which a replaced file is found, in the order of Files.
type fileStates [3]fileState

type fileState struct {
	inode    uint64
	size     int64
	modified time.Time
}

func stateOf(info os.FileInfo) fileState {
	state := fileState{size: info.Size(), modified: info.ModTime()}
	if sys, is := info.Sys().(*syscall.Stat_t); is {
		state.inode = sys.Ino
	}
	return state
}

// parseAllow reads patterns of mode mtls. They may not be empty: without them nobody says which certificates are peers.
// The error is InvalidArgument.
func (c *Credentials) parseAllow(patterns []string) (*Names, error) {
	if c.mode != MTLS {
		return nil, errs.New(errs.InvalidArgument, "security", "mode %s has no list of identities", c.mode).
			WithHint("security/allow belongs to security/ca, cert and key")
	}
	if len(patterns) == 0 {
		return nil, errs.New(errs.InvalidArgument, "security", "security/allow is empty: no certificate is admitted").
			WithHint(`name identities, such as "spiffe://prod/prefill/*" or "dns:*.decode.svc"; "*" admits all that ` +
				"security/ca has issued")
	}
	return ParseNames("security/allow", patterns)
}

// Reload reads the files of mode mtls again where one has been replaced, and reports whether something differs now.
// Patterns that are not nil take the place of security/allow. Handshakes from then on show the new certificate and
// believe the new authorities and patterns; connections of before ask Still, see Rules. After an error everything is as
// before. In the other modes there is nothing to read, and patterns are InvalidArgument.
func (c *Credentials) Reload(allow []string) (changed bool, err error) {
	var names *Names
	if allow != nil {
		if names, err = c.parseAllow(allow); err != nil {
			return false, err
		}
	}
	if c.mode != MTLS {
		return false, nil
	}
	c.loading.Lock()
	defer c.loading.Unlock()
	next, err := c.read()
	if err != nil {
		return false, err
	}
	if names != nil {
		was := c.allow.Swap(names)
		changed = was == nil || was.String() != names.String()
	}
	if next != nil {
		c.shows.Store(next)
		changed = true
	}
	if changed {
		c.rules.Add(1)
	}
	return changed, nil
}

// Rules is a number that grows when files or patterns of mode mtls have changed. A proof is good by the rules that were
// read before its handshake; by later ones, see Still.
func (c *Credentials) Rules() uint64 { return c.rules.Load() }

// read returns the content of the files, nil if none was replaced since they were read last.
func (c *Credentials) read() (*shown, error) {
	next := &shown{}
	texts, err := c.readFiles(&next.state)
	if now := c.shows.Load(); err != nil || now != nil && now.state == next.state {
		return nil, err
	}
	if next.roots, err = readRoots(texts[2]); err != nil {
		return nil, err
	}
	pair, err := tls.X509KeyPair(texts[0], texts[1])
	clear(texts[1])
	if err != nil {
		return nil, wrongFile("security/cert and security/key", "%v", err)
	}
	signer, is := pair.PrivateKey.(crypto.Signer)
	if !is {
		return nil, wrongFile("security/key", "a key of this kind signs nothing")
	}
	if _, err := identitiesOf(pair.Leaf); err != nil {
		return nil, wrongFile("security/cert", "%v", err)
	}
	if next.own, err = c.issue(&authority{pair.Leaf, signer}); err != nil {
		return nil, err
	}
	next.own.Certificate = append(next.own.Certificate, pair.Certificate...)
	next.until = pair.Leaf.NotAfter
	return next, nil
}

// Until returns the end of our certificate, the zero time if it has none.
func (c *Credentials) Until() time.Time { return c.shows.Load().until }

// Still returns the reason to refuse a peer that was admitted, by the files as they are now and at a time. Nil if there
// is none.
func (c *Credentials) Still(proof Proof, at time.Time) error {
	if c.mode != MTLS {
		return nil
	}
	_, _, err := c.verifyIssued(c.shows.Load(), proof.chain, x509.ExtKeyUsageAny, at)
	return err
}

// verifyIssued returns the identities of a chain and the end of its certificates, or the reason to refuse it at a time.
func (c *Credentials) verifyIssued(now *shown, chain []*x509.Certificate, usage x509.ExtKeyUsage,
	at time.Time) (string, time.Time, error) {
	if len(chain) < 2 {
		return "", time.Time{}, refuse("it has no certificate of an authority; security/ca, cert and key give one")
	}
	key, leaf, between := chain[0], chain[1], x509.NewCertPool()
	for _, issuer := range chain[2:] {
		between.AddCert(issuer)
	}
	// First of all: the key of a stranger's certificate may be large enough to cost time.
	found, err := leaf.Verify(x509.VerifyOptions{Roots: now.roots, Intermediates: between, CurrentTime: at,
		KeyUsages: []x509.ExtKeyUsage{usage}})
	if err != nil {
		return "", time.Time{}, refuse("%s", defectOf(err))
	}
	if err := leaf.CheckSignature(key.SignatureAlgorithm, key.RawTBSCertificate, key.Signature); err != nil {
		return "", time.Time{}, refuse("its certificate has not signed the key of the engine: %v", err)
	}
	identities, err := identitiesOf(leaf)
	names := transport.ProvedNames(identities, nameOf(key.RawSubjectPublicKeyInfo))
	switch {
	case err != nil:
		return "", time.Time{}, refuse("its certificate %v", err)
	case !c.allow.Load().Admit(names):
		return "", time.Time{}, &NotAdmitted{unlisted: true,
			Reason: "security/allow does not list it: it is " + names}
	}
	return identities, endOf(found), nil
}

// defectOf says which of our settings a certificate fails.
func defectOf(err error) string {
	var foreign x509.UnknownAuthorityError
	var invalid x509.CertificateInvalidError
	switch {
	case errors.As(err, &foreign):
		return "no authority in security/ca has issued its certificate"
	case errors.As(err, &invalid) && invalid.Reason == x509.IncompatibleUsage:
		return "its certificate is not for this use: it needs server auth and client auth, or no extended key usage"
	}
	return fmt.Sprintf("its certificate is not valid: %v", err)
}

// endOf returns the time until which one of the chains is valid.
func endOf(chains [][]*x509.Certificate) (end time.Time) {
	for _, chain := range chains {
		first := slices.MinFunc(chain, func(a, b *x509.Certificate) int { return a.NotAfter.Compare(b.NotAfter) })
		if first.NotAfter.After(end) {
			end = first.NotAfter
		}
	}
	return end
}

// identitiesOf returns the SPIFFE ID and the DNS names of a certificate, separated by spaces. A name with a wildcard is
// that of many hosts, and identifies none.
func identitiesOf(leaf *x509.Certificate) (string, error) {
	var list []string
	switch {
	case leaf.IsCA:
		return "", errors.New("is an authority's, and not an engine's")
	case len(leaf.URIs) > 1:
		return "", fmt.Errorf("has %d URIs, of which SPIFFE allows one", len(leaf.URIs))
	case len(leaf.URIs) == 1 && leaf.URIs[0].Scheme == "spiffe":
		id, err := spiffeID(leaf.URIs[0])
		if err != nil {
			return "", err
		}
		list = append(list, id)
	}
	for _, name := range leaf.DNSNames {
		if name != "" && printable(name) && !strings.Contains(name, "*") {
			list = append(list, "dns:"+strings.ToLower(name))
		}
	}
	if len(list) == 0 {
		return "", errors.New("has no identity: neither a SPIFFE ID nor a DNS name")
	}
	return strings.Join(list, " "), nil
}

// spiffeID checks a SPIFFE ID by its standard: a trust domain and a path of plain segments.
func spiffeID(u *url.URL) (string, error) {
	text := u.String()
	path := strings.TrimPrefix(text, "spiffe://"+u.Host)
	plain := u.Host != "" && u.User == nil && u.Host == strings.ToLower(u.Host) && len(text) <= patternMax
	for _, segment := range strings.Split(path, "/")[1:] {
		plain = plain && segment != "" && segment != "." && segment != ".."
	}
	if !plain || !printable(text) || strings.ContainsAny(text[len("spiffe://"):], ":@%?#*") {
		return "", errors.New("has a URI that is no SPIFFE ID")
	}
	return text, nil
}

// readFiles reads the three files, and notes their states.
func (c *Credentials) readFiles(state *fileStates) (texts [3][]byte, err error) {
	for i, f := range []struct {
		setting, path string
		secret        bool
	}{{"security/cert", c.files.Certificate, false}, {"security/key", c.files.Key, true},
		{"security/ca", c.files.Authorities, false}} {
		if f.path == "" {
			return texts, wrongFile(f.setting, "it is not set; mode mtls needs cert, key, ca and allow")
		}
		if texts[i], state[i], err = readPEM(f.setting, f.path, f.secret); err != nil {
			return texts, err
		}
	}
	return texts, nil
}

// ReadSecret reads the file of a setting that others must not be able to use; see readPEM. The error is InvalidArgument
// and names the setting.
func ReadSecret(setting, path string) ([]byte, error) {
	text, _, err := readPEM(setting, path, true)
	return text, err
}

// ReadPublic is ReadSecret for a file that everybody may read.
func ReadPublic(setting, path string) ([]byte, error) {
	text, _, err := readPEM(setting, path, false)
	return text, err
}

// readPEM reads a file whole. A secret one must be out of reach for others. Its group may read it where root owns it,
// as in a Secret of Kubernetes that is mounted for a group.
func readPEM(setting, path string, secret bool) ([]byte, fileState, error) {
	fail := func(format string, args ...any) ([]byte, fileState, error) {
		return nil, fileState{}, wrongFile(setting, format, args...)
	}
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0) // a FIFO would block until somebody writes
	if err != nil {
		return fail("cannot read %q: %v", path, causeOf(err))
	}
	defer func() { _ = f.Close() }() // only read: nothing can be lost
	about, err := f.Stat()
	if err != nil {
		return fail("cannot read %q: %v", path, causeOf(err))
	}
	owner, _ := about.Sys().(*syscall.Stat_t)
	foreign := os.FileMode(0o077)
	if owner != nil && owner.Uid == 0 {
		foreign = 0o027
	}
	switch {
	case !about.Mode().IsRegular():
		return fail("%q is no file", path)
	case secret && about.Mode().Perm()&foreign != 0:
		return fail("%q has mode %04o: its group or others may use it; chmod 600 keeps it secret", path,
			about.Mode().Perm())
	}
	text, err := io.ReadAll(io.LimitReader(f, pemMax+1))
	switch {
	case err != nil:
		return fail("cannot read %q: %v", path, causeOf(err))
	case len(text) > pemMax:
		return fail("%q has more than %d bytes", path, pemMax)
	}
	return text, stateOf(about), nil
}

// readRoots reads the authorities of peers.
func readRoots(text []byte) (*x509.CertPool, error) {
	roots := x509.NewCertPool()
	n := 0
	for block, rest := pem.Decode(text); block != nil; block, rest = pem.Decode(rest) {
		if block.Type != "CERTIFICATE" {
			continue
		}
		authority, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return nil, wrongFile("security/ca", "%v", err)
		}
		roots.AddCert(authority)
		n++
	}
	if n == 0 {
		return nil, wrongFile("security/ca", "the file has no certificate in PEM")
	}
	return roots, nil
}

func wrongFile(setting, format string, args ...any) error {
	return errs.New(errs.InvalidArgument, "security", setting+": "+format, args...).
		WithScope(errs.ScopeTransport, errs.SideLocal)
}
