package security

import (
	"bytes"
	"crypto/x509"
	"encoding/base64"
	"encoding/hex"
	"encoding/pem"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/tent-engine/tent/gocore/errs"
)

// keyFile writes a key file with a mode.
func keyFile(t *testing.T, secret []byte, mode os.FileMode) string {
	path := filepath.Join(t.TempDir(), "cluster.key")
	require.NoError(t, os.WriteFile(path, secret, 0o600))
	require.NoError(t, os.Chmod(path, mode))
	return path
}

func TestKeyFilesThatProtectNothingAreRefused(t *testing.T) {
	good := bytes.Repeat([]byte{7}, 32)
	folder := t.TempDir()
	fifo := filepath.Join(folder, "fifo")
	require.NoError(t, unix.Mkfifo(fifo, 0o600))
	for want, path := range map[string]string{
		"has 31 bytes: a key has at least 32":           keyFile(t, good[:31], 0o600),
		"has 5000 bytes, more than 4096":                keyFile(t, make([]byte, 5000), 0o600),
		"has mode 0640: its group or others may use it": keyFile(t, good, 0o640),
		"has mode 0604":             keyFile(t, good, 0o604),
		"has mode 0620":             keyFile(t, good, 0o620),
		"no such file or directory": filepath.Join(folder, "missing"),
		"is no file":                folder,
		"fifo\" is no file":         fifo,
	} {
		_, err := Open(Settings{ClusterKey: path})
		require.Equal(t, errs.InvalidArgument, errs.CodeOf(err), want)
		require.ErrorContains(t, err, want)
		require.ErrorContains(t, err, "security/cluster_key")
		require.NotContains(t, err.Error(), "insecure")
	}
	_, err := Open(Settings{ClusterKey: keyFile(t, good, 0o400)})
	require.NoError(t, err)
}

// Two holders of a key derive one authority; a key that differs by a bit is another authority. The
// fingerprint is a constant of the format: an engine of another version must derive the same.
func TestAKeyIsAnAuthority(t *testing.T) {
	secret := bytes.Repeat([]byte{7}, 32)
	one, err := Open(Settings{ClusterKey: keyFile(t, secret, 0o600)})
	require.NoError(t, err)
	two, err := Open(Settings{ClusterKey: keyFile(t, secret, 0o600)})
	require.NoError(t, err)
	secret[31] ^= 1
	other, err := Open(Settings{ClusterKey: keyFile(t, secret, 0o600)})
	require.NoError(t, err)
	require.Equal(t, "cluster:41e307cdfe196814a70fa647a9f5357f", one.identity)
	require.Equal(t, one.identity, two.identity)
	require.NotEqual(t, one.identity, other.identity)
	require.NotEqual(t, one.ID(), two.ID(), "each engine has a key of its own")
}

func TestLocalModeListensOnLoopback(t *testing.T) {
	local, err := Open(Settings{})
	require.NoError(t, err)
	cluster, err := Open(Settings{ClusterKey: keyFile(t, bytes.Repeat([]byte{7}, 32), 0o600)})
	require.NoError(t, err)
	anybody, err := Open(Settings{Insecure: true})
	require.NoError(t, err)
	for address, loopback := range map[string]bool{"127.0.0.1": true, "127.9.9.9": true, "::1": true,
		"::ffff:127.0.0.1": true, "0.0.0.0": false, "::": false, "10.0.0.5": false, "fe80::1": false,
		"::ffff:10.0.0.5": false} {
		a := netip.MustParseAddr(address)
		require.NoError(t, cluster.MayListen("x", a))
		require.NoError(t, anybody.MayListen("x", a))
		err := local.MayListen("transports/x/addresses", a)
		if loopback {
			require.NoError(t, err, address)
			continue
		}
		require.Equal(t, errs.InvalidArgument, errs.CodeOf(err), address)
		require.ErrorContains(t, err, "transports/x/addresses is "+a.String())
		require.Regexp(t, "set security to .*cluster_key.*; insecure=true would", err.Error())
	}
}

// No way to print the credentials shows a key of theirs.
func TestKeysAreNotPrinted(t *testing.T) {
	secret := []byte("0123456789abcdef0123456789abcdef")
	c, err := Open(Settings{ClusterKey: keyFile(t, secret, 0o600)})
	require.NoError(t, err)
	private := c.private
	der, err := x509.MarshalPKCS8PrivateKey(private)
	require.NoError(t, err)
	printed := fmt.Sprintf("%v %+v %#v %s %q %v %+v", c, c, c, c, c, struct{ C *Credentials }{c}, []any{c})
	for _, key := range [][]byte{secret, private.Seed(), der, pem.EncodeToMemory(&pem.Block{Bytes: der})} {
		require.NotContains(t, printed, string(key))
		require.NotContains(t, printed, hex.EncodeToString(key))
		require.NotContains(t, printed, base64.StdEncoding.EncodeToString(key))
		require.NotContains(t, printed, fmt.Sprint(key)[1:20])
	}
}
