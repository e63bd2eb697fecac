package names

import (
	"crypto/tls"
	"crypto/x509"
	"strings"

	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/security"
)

// Access is how a client shows itself to a service, and knows it: a user, and files with the password and with PEM of
// TLS. Each is "" for none. The files are read when they are needed, so no secret stands here.
type Access struct{ User, Password, CA, Certificate, Key string }

// password returns the content of the password's file, without the line end.
func (a Access) password() (string, error) {
	if a.Password == "" {
		return "", nil
	}
	text, err := security.ReadSecret("metadata_password_file", a.Password)
	return strings.TrimRight(string(text), "\r\n"), err
}

// halfAccess is the error of a user without a password at a service, or of a password without a user.
func halfAccess(service string) error {
	return errs.New(errs.InvalidArgument, "metadata", "%s takes a user with a password: one is missing", service).
		WithHint("set both of metadata_user and metadata_password_file")
}

// noUser refuses an address with a user: addresses stand in logs and errors, and a password may be beside it. Such
// a password may have a slash, so any @ counts; in a path it is %40.
func noUser(address string) error {
	if !strings.Contains(address, "@") {
		return nil
	}
	return errs.New(errs.InvalidArgument, "metadata", "an address in metadata_servers has a user, or a password").
		WithHint("set metadata_user, and metadata_password_file to a file with the password")
}

// hasTLS reports whether files of TLS are named.
func (a Access) hasTLS() bool { return a.CA != "" || a.Certificate != "" || a.Key != "" }

// tls returns the configuration of TLS with the named files. The client's certificate is read again for each
// connection, since issuers replace it.
func (a Access) tls() (*tls.Config, error) {
	c := &tls.Config{MinVersion: tls.VersionTLS12}
	if a.CA != "" {
		text, err := security.ReadPublic("metadata_tls_ca", a.CA)
		if err != nil {
			return nil, err
		}
		if c.RootCAs = x509.NewCertPool(); !c.RootCAs.AppendCertsFromPEM(text) {
			return nil, errs.New(errs.InvalidArgument, "metadata", "metadata_tls_ca: %q holds no certificate", a.CA)
		}
	}
	if a.Certificate == "" && a.Key == "" {
		return c, nil
	}
	if _, err := a.pair(); err != nil {
		return nil, err
	}
	c.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return a.pair() }
	return c, nil
}

// pair reads the certificate of the client with its key.
func (a Access) pair() (*tls.Certificate, error) {
	certificate, err := security.ReadPublic("metadata_tls_certificate", a.Certificate)
	if err != nil {
		return nil, err
	}
	key, err := security.ReadSecret("metadata_tls_key", a.Key)
	if err != nil {
		return nil, err
	}
	pair, err := tls.X509KeyPair(certificate, key)
	if err != nil {
		return nil, errs.New(errs.InvalidArgument, "metadata", "metadata_tls_key does not belong to "+
			"metadata_tls_certificate: %v", err)
	}
	return &pair, nil
}
