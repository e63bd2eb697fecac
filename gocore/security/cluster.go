package security

import (
	"crypto"
	"crypto/ed25519"
	"crypto/hkdf"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"errors"
	"io"
	"io/fs"
	"os"
	"syscall"

	"github.com/tent-engine/tent/gocore/errs"
)

// Bounds of a key file. The least is the strength of the keys that are made of it.
const (
	keyBytesMin = 32
	keyBytesMax = 4096
)

// authority signs the certificate of an engine's key. It lives while that is made. For a cluster it is the certificate
// authority that every holder of the key file derives, in mode mtls the certificate in the engine's file.
type authority struct {
	certificate *x509.Certificate
	private     crypto.Signer
}

// joinCluster makes the engine a member of the cluster of a key file.
func (c *Credentials) joinCluster(path string) error {
	a, err := readAuthority(path)
	if err != nil {
		return err
	}
	c.identity = "cluster:" + nameOf(a.certificate.RawSubjectPublicKeyInfo).String()
	roots := x509.NewCertPool()
	roots.AddCert(a.certificate)
	return c.show(a, roots)
}

// readAuthority derives the authority of a key file: an Ed25519 seed by HKDF-SHA256 (RFC 5869). All of it follows from
// the bytes of the file, so that every holder makes the same certificate.
func readAuthority(path string) (*authority, error) {
	secret, err := readKey(path)
	if err != nil {
		return nil, err
	}
	defer clear(secret)
	seed, err := hkdf.Key(sha256.New, secret, nil, "tent ca", ed25519.SeedSize)
	if err != nil {
		return nil, errs.Wrap(errs.Internal, "security", err)
	}
	defer clear(seed)
	private := ed25519.NewKeyFromSeed(seed)
	template := certificate("tent cluster")
	template.IsCA, template.BasicConstraintsValid, template.MaxPathLenZero = true, true, true
	template.KeyUsage = x509.KeyUsageCertSign
	der, err := x509.CreateCertificate(rand.Reader, template, template, private.Public(), private)
	if err != nil {
		return nil, errs.Wrap(errs.Internal, "security", err)
	}
	made, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, errs.Wrap(errs.Internal, "security", err)
	}
	return &authority{made, private}, nil
}

// readKey reads a key file that nobody but its owner can read. It asks the open file, so that nobody exchanges it
// between the question and the answer. Its bytes are taken as they are: a line end is part of the key.
func readKey(path string) ([]byte, error) {
	refuse := func(format string, args ...any) ([]byte, error) {
		return nil, wrongFile("security/cluster_key", format, args...)
	}
	// A FIFO would block until somebody writes.
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return refuse("cannot read the key file %q: %v", path, causeOf(err))
	}
	defer func() { _ = f.Close() }() // only read: nothing can be lost
	about, err := f.Stat()
	switch {
	case err != nil:
		return refuse("cannot read the key file %q: %v", path, causeOf(err))
	case !about.Mode().IsRegular():
		return refuse("%q is no file", path)
	case about.Mode().Perm()&0o077 != 0:
		return refuse("the key file %q has mode %04o: its group or others may use it; chmod 600 keeps it secret", path,
			about.Mode().Perm())
	case about.Size() < keyBytesMin:
		return refuse("the key file %q has %d bytes: a key has at least %d, from a random source such as "+
			"head -c 32 /dev/urandom", path, about.Size(), keyBytesMin)
	case about.Size() > keyBytesMax:
		return refuse("the key file %q has %d bytes, more than %d: that is no key", path, about.Size(), keyBytesMax)
	}
	secret := make([]byte, about.Size())
	if _, err := io.ReadFull(f, secret); err != nil {
		return refuse("cannot read the key file %q: %v", path, causeOf(err))
	}
	return secret, nil
}

// causeOf drops operation and path, which the message has already.
func causeOf(err error) error {
	if p := (*fs.PathError)(nil); errors.As(err, &p) {
		return p.Err
	}
	return err
}
