package meta

import (
	"context"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tent-engine/tent/gocore/errs"
)

func TestTargetsAreParsed(t *testing.T) {
	for text, want := range map[string]Target{
		"":                          {},
		"127.0.0.1:41233":           {Address: "127.0.0.1:41233"},
		"127.0.0.1:41233/kv":        {Address: "127.0.0.1:41233", Region: "kv"},
		"[::1]:80/kv":               {Address: "[::1]:80", Region: "kv"},
		"[fe80::1%eth0]:80":         {Address: "[fe80::1%eth0]:80"},
		"decode_0.cluster:9/kv/l.3": {Address: "decode_0.cluster:9", Region: "kv/l.3"},
		"host:65535/größe":          {Address: "host:65535", Region: "größe"},
		"file:///x":                 {File: "/x"},
		"file:///tmp/a b:c/d":       {File: "/tmp/a b:c/d"},
	} {
		got, err := PeerToPeer{}.Resolve(context.Background(), text)
		require.NoError(t, err, text)
		require.Equal(t, want, got, text)
		require.Equal(t, text, got.String())
		require.Equal(t, text == "", got.Local(), text)
	}
}

func TestMalformedTargetsSayWhatIsWrong(t *testing.T) {
	for text, want := range map[string]string{
		"127.0.0.1":                       "has no port",
		"decode-0":                        "has no port",
		"[::1]":                           "has no port",
		"::1":                             "[::1]:port",
		"fe80::1:80":                      "[fe80::1:80]:port",
		"a:b:c":                           "brackets",
		":80":                             "has no host",
		"host:":                           "not a port",
		"host:0":                          "not a port",
		"host:65536":                      "not a port",
		"host:-1":                         "not a port",
		"host:+1":                         "not a port",
		"host:http":                       "not a port",
		"ho st:80":                        "neither a host name",
		"-x:80":                           "neither a host name",
		"[1.2.3.4]:80":                    "not an IPv6 address",
		"[::1:80":                         "not an address",
		"host:80/":                        "names no region",
		"/kv":                             "is empty",
		"http://host:80":                  `begins with "http://"`,
		"file://relative":                 "no absolute path",
		"file:/relative":                  "no absolute path",
		"file:///":                        "is a directory",
		"file:///a\x00b":                  "zero byte",
		"h:1/" + strings.Repeat("x", 256): "more than 255",
		strings.Repeat("h", 254) + ":1":   "more than 253",
		strings.Repeat("h", 5000):         "more than 4096",
	} {
		_, err := ParseTarget(text)
		require.ErrorContains(t, err, want, text)
		require.Equal(t, errs.InvalidArgument, errs.CodeOf(err), text)
		require.ErrorContains(t, err, "127.0.0.1:41233/kv", "the hint shows an example")
	}
}

func TestLoopbackAddresses(t *testing.T) {
	for _, text := range []string{"127.0.0.1:80", "127.9.9.9:1", "[::1]:80", "localhost:80", "LocalHost.:80",
		"[::ffff:127.0.0.1]:80"} {
		require.True(t, IsLoopback(text), text)
	}
	for _, text := range []string{"10.0.0.1:80", "[::2]:80", "0.0.0.0:80", "localhost.example.org:80", "decode-0:80"} {
		require.False(t, IsLoopback(text), text)
	}
}

func FuzzParseTarget(f *testing.F) {
	for _, seed := range []string{"127.0.0.1:41233/kv", "[::1]:80/kv", "file:///x", "", "[::1", "a:b:c", "%:1",
		"[%]:1"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		target, err := ParseTarget(text)
		if err != nil {
			require.Equal(t, errs.InvalidArgument, errs.CodeOf(err))
			return
		}
		require.Equal(t, text, target.String())
		again, err := ParseTarget(target.String())
		require.NoError(t, err)
		require.Equal(t, target, again)
	})
}
