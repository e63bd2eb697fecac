package services

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"net"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	etcd "go.etcd.io/etcd/client/v3"

	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/security/securitytest"
)

// refused are the words of the services for a wrong password.
var refused = map[string]string{"etcd": "authentication failed", "redis": "WRONGPASS", "http": "401"}

const password = "correct-horse-battery-staple"

// certified makes files of a server and its clients, by one authority.
func certified(t *testing.T, by *securitytest.Authority) securitytest.Files {
	files := securitytest.NewFiles(t)
	own := by.Issue(t, func(c *x509.Certificate) { c.IPAddresses = []net.IP{net.IPv4(127, 0, 0, 1)} }, "localhost")
	files.Write(t, own, by)
	return files
}

func wordFile(t *testing.T, word string) string {
	file := filepath.Join(t.TempDir(), "word")
	require.NoError(t, os.WriteFile(file, []byte(word), 0o600))
	return file
}

// secureService is one with TLS, certificates of clients, and the user tent with a password.
func secureService(t *testing.T, kind string) *service {
	files := certified(t, securitytest.NewAuthority(t, nil))
	s := newService(t, kind, files.Folder, wordFile(t, password))
	if kind != "etcd" {
		return s
	}
	pair, err := tls.LoadX509KeyPair(files.Certificate, files.Key)
	require.NoError(t, err)
	roots := x509.NewCertPool()
	text, err := os.ReadFile(files.Root)
	require.NoError(t, err)
	require.True(t, roots.AppendCertsFromPEM(text))
	c, err := etcd.New(etcd.Config{Endpoints: []string{s.address}, DialTimeout: patience,
		TLS: &tls.Config{MinVersion: tls.VersionTLS12, Certificates: []tls.Certificate{pair}, RootCAs: roots}})
	require.NoError(t, err)
	defer func() { require.NoError(t, c.Close()) }()
	ctx := t.Context()
	_, err = c.UserAdd(ctx, "root", "of the test")
	require.NoError(t, err)
	_, err = c.UserGrantRole(ctx, "root", "root")
	require.NoError(t, err)
	_, err = c.RoleAdd(ctx, "engines")
	require.NoError(t, err)
	both := etcd.PermissionType(etcd.PermReadWrite)
	_, err = c.RoleGrantPermission(ctx, "engines", "tent/engines/", "tent/engines0", both)
	require.NoError(t, err)
	_, err = c.UserAdd(ctx, "tent", password)
	require.NoError(t, err)
	_, err = c.UserGrantRole(ctx, "tent", "engines")
	require.NoError(t, err)
	_, err = c.AuthEnable(ctx)
	require.NoError(t, err)
	return s
}

// Names work over TLS with a certificate and a password. Without one of these, and with others, an engine does not
// start. Its error has the cause and no secret, and neither have its settings.
func TestServicesByTLSAndPassword(t *testing.T) {
	eachKind(t, func(t *testing.T, kind string) {
		s := secureService(t, kind)
		owner, asker := open(t, s.settings("decode-0")), open(t, s.settings(""))
		offer(t, owner, "kv")
		opens(t, asker, "decode-0/kv")
		shown, err := json.Marshal(owner.Config().Dump())
		require.NoError(t, err)
		require.NotContains(t, string(shown), password)

		stranger := certified(t, securitytest.NewAuthority(t, nil))
		public := wordFile(t, password)
		require.NoError(t, os.Chmod(public, 0o644))
		type changes map[string]any
		for _, wrong := range []struct {
			name    string
			code    errs.Code
			cause   string
			changes changes
		}{
			{"another password", errs.MetadataError, refused[kind],
				changes{"metadata_password_file": wordFile(t, "guessed")}},
			{"a public password", errs.InvalidArgument, "chmod 600", changes{"metadata_password_file": public}},
			{"another authority", errs.MetadataError, "unknown authority", changes{"metadata_tls_ca": stranger.Root}},
			{"a strange client", errs.MetadataError, "certificate",
				changes{"metadata_tls_certificate": stranger.Certificate, "metadata_tls_key": stranger.Key}},
			{"a key of another", errs.InvalidArgument, "metadata_tls_key", changes{"metadata_tls_key": stranger.Key}},
		} {
			settings := s.settings("decode-1")
			for key, value := range wrong.changes {
				settings[key] = value
			}
			e, err := start(settings)
			if err == nil {
				closeEngine(t, e)
			}
			require.Equal(t, wrong.code, errs.CodeOf(err), "%s: %v", wrong.name, err)
			require.ErrorContains(t, err, wrong.cause, wrong.name)
			for _, word := range []string{password, "guessed"} {
				require.NotContains(t, err.Error(), word, wrong.name)
			}
			t.Logf("%s, %s: %v", kind, wrong.name, err)
		}

		// Issuers replace files under their names: the next connection takes the new ones.
		if kind != "etcd" {
			s.kill()
			s.start()
			opens(t, asker, "decode-0/kv")
		}
	})
}
