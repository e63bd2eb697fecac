// Package securitytest makes the certificates of tests, by the standard library alone: authorities, and files of
// engines in mode mtls.
package securitytest

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net/url"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// Authority issues certificates.
type Authority struct {
	Certificate *x509.Certificate
	Key         crypto.Signer
}

// NewAuthority makes an authority, issued by parent or by itself for nil.
func NewAuthority(t testing.TB, parent *Authority) *Authority {
	t.Helper()
	template := template(t)
	template.Subject = pkix.Name{CommonName: "authority of a test " + template.SerialNumber.String()}
	template.IsCA, template.BasicConstraintsValid, template.KeyUsage = true, true, x509.KeyUsageCertSign
	return issue(t, template, parent)
}

// Files are the PEM files of an engine in mode mtls.
type Files struct {
	Folder                 string
	Certificate, Key, Root string
}

// NewFiles names files in a new folder; Write makes them.
func NewFiles(t testing.TB) Files {
	folder := t.TempDir()
	in := func(name string) string { return filepath.Join(folder, name) }
	return Files{folder, in("tls.crt"), in("tls.key"), in("ca.crt")}
}

// Settings are those of an engine with the files.
func (f Files) Settings(allow ...string) map[string]any {
	return map[string]any{"security/cert": f.Certificate, "security/key": f.Key, "security/ca": f.Root,
		"security/allow": allow}
}

// Issue makes a certificate of an engine that is valid for an hour; change may be nil. Identities are URIs, or names of
// hosts where they have no colon.
func (a *Authority) Issue(t testing.TB, change func(*x509.Certificate), identities ...string) *Authority {
	t.Helper()
	template := template(t)
	template.Subject = pkix.Name{CommonName: "an engine"}
	template.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}
	for _, identity := range identities {
		if u, err := url.Parse(identity); err == nil && u.Scheme != "" {
			template.URIs = append(template.URIs, u)
		} else {
			template.DNSNames = append(template.DNSNames, identity)
		}
	}
	if change != nil {
		change(template)
	}
	return issue(t, template, a)
}

// Write replaces the files, each at once: a certificate with its key, and the authorities that the engine believes.
func (f Files) Write(t testing.TB, own *Authority, roots ...*Authority) {
	t.Helper()
	der, err := x509.MarshalPKCS8PrivateKey(own.Key)
	must(t, err)
	var authorities []byte
	for _, root := range roots {
		authorities = append(authorities, PEM("CERTIFICATE", root.Certificate.Raw)...)
	}
	for path, text := range map[string][]byte{f.Certificate: PEM("CERTIFICATE", own.Certificate.Raw),
		f.Key: PEM("PRIVATE KEY", der), f.Root: authorities} {
		must(t, os.WriteFile(path+".new", text, 0o600))
		must(t, os.Rename(path+".new", path))
	}
}

// PEM encodes a block.
func PEM(kind string, der []byte) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der})
}

func template(t testing.TB) *x509.Certificate {
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 120))
	must(t, err)
	return &x509.Certificate{SerialNumber: serial, NotBefore: time.Now().Add(-time.Hour),
		NotAfter: time.Now().Add(time.Hour)}
}

func issue(t testing.TB, template *x509.Certificate, by *Authority) *Authority {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	must(t, err)
	parent, signer := template, crypto.Signer(key)
	if by != nil {
		parent, signer = by.Certificate, by.Key
	}
	der, err := x509.CreateCertificate(rand.Reader, template, parent, key.Public(), signer)
	must(t, err)
	made, err := x509.ParseCertificate(der)
	must(t, err)
	return &Authority{made, key}
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
