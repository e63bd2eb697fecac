package security

import (
	"math/rand/v2"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tent-engine/tent/gocore/errs"
)

// Two fingerprints that begin with the same 15 digits.
const (
	someID  = "9f0c76b1d24e5a830123456789abcdef"
	otherID = "9f0c76b1d24e5a840123456789abcdef"
)

func TestNamesAdmitTheirIdentitiesAlone(t *testing.T) {
	for _, c := range []struct {
		pattern, identities string
		admits              bool
	}{
		{"spiffe://prod/prefill/*", "spiffe://prod/prefill/7", true},
		{"spiffe://prod/prefill/*", "spiffe://prod/prefill/7/gpu", false},
		{"spiffe://prod/prefill/*", "spiffe://prod/prefill", false},
		{"spiffe://prod/prefill/*", "spiffe://prod.evil/prefill/7", false},
		{"spiffe://prod/**", "spiffe://prod/prefill/7/gpu", true},
		{"spiffe://prod/**/gpu", "spiffe://prod/prefill/7/gpu", true},
		{"spiffe://prod/*/7", "spiffe://prod/a/b/7", false},
		{"spiffe://prod/a", "spiffe://prod/A", false},
		{"dns:*.decode.svc", "dns:decode-0.decode.svc", true},
		{"dns:*.decode.svc", "dns:a.b.decode.svc", false},
		{"dns:*.decode.svc", "dns:decode.svc", false},
		{"dns:*.DECODE.svc", "dns:x.decode.svc", true},
		{"dns:*", "dns:a.b", false},
		{"dns:**", "dns:a.b", true},
		{"dns:**", "spiffe://a/b", false},
		{"uid:1000", "uid:10000", false},
		{"uid:1000", "uid:1000", true},
		{"*", "spiffe://a/b", true},
		{"*", "", false},
		{"dns:b", "spiffe://a/b dns:b", true},
		{"id:" + someID, "uid:1 id:" + someID, true},
		{"id:" + strings.ToUpper(someID), "id:" + someID, true},
		{"id:" + someID, "id:" + otherID, false},
		{"id:" + someID, "cluster:" + someID, false},
		{"id:" + someID[:16] + "*", "id:" + someID, true},
		{"id:" + someID[:16] + "*", "id:" + otherID, false},
		{"id:" + someID + "*", "id:" + someID, true},
		{"cluster:" + someID[:20] + "*", "cluster:" + someID, true},
		{"cluster:" + someID, "cluster:" + otherID, false},
	} {
		n, err := ParseNames("security/allow", []string{c.pattern})
		require.NoError(t, err)
		require.Equal(t, c.admits, n.Admit(c.identities), "%s and %s", c.pattern, c.identities)
	}
	none, err := ParseNames("peers", nil)
	require.NoError(t, err)
	require.False(t, none.Admit("uid:1000"), "an empty list admits nobody")
}

func TestPatternsOfNoIdentityAreRefused(t *testing.T) {
	for p, cause := range map[string]string{
		"": "begins with no kind", "prefill": "begins with no kind",
		"http://a/b": "begins with no kind", "spiffe:a": "begins with no kind",
		"dns:": "label is empty", "dns:a..b": "label is empty", "dns:a b": "has a space",
		"dns:" + strings.Repeat("a", 3000): "3004 bytes, more than 2048",
		"spiffe://\x00":                    "not ASCII", "spiffe://a//b": "segment of the path is empty",
		"spiffe://a/b?c": "no SPIFFE ID", "spiffe://": "is empty",
		"uid:root": "a user is a number", "uid:*": "a user is a number", "uid:-1": "a user is a number",
		"id:": "32 digits, and this one has 0", "id:" + someID[:31]: "has 31", "id:" + someID + "0": "has 33",
		"id:" + someID[:15] + "*": "an attacker finds", "id:*": "an attacker finds", someID: "begins with no kind",
		"id:*" + someID[:31]: "hexadecimal", "id:" + someID[:16] + "?": "hexadecimal",
		"id:0x" + someID[:30]: "hexadecimal", "cluster:x": "hexadecimal",
	} {
		_, err := ParseNames("security/allow", []string{"*", p})
		require.Equal(t, errs.InvalidArgument, errs.CodeOf(err), p)
		require.ErrorContains(t, err, "security/allow")
		require.ErrorContains(t, err, cause, p)
	}
	_, err := ParseNames("peers", make([]string, 300))
	require.ErrorContains(t, err, "300 patterns, more than 256")
}

// A regular expression is the oracle for random patterns and texts of few letters.
func TestMatchingAgreesWithARegularExpression(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 1))
	text := func(letters string, n int) string {
		b := make([]byte, random.IntN(n))
		for i := range b {
			b[i] = letters[random.IntN(len(letters))]
		}
		return string(b)
	}
	for range 20000 {
		pattern, subject := text("ab/**", 8), text("ab/", 10)
		expression := ""
		for rest := pattern; rest != ""; {
			switch {
			case strings.HasPrefix(rest, "**"):
				expression, rest = expression+".*", rest[2:]
			case rest[0] == '*':
				expression, rest = expression+"[^/]*", rest[1:]
			default:
				expression, rest = expression+regexp.QuoteMeta(rest[:1]), rest[1:]
			}
		}
		want := regexp.MustCompile("^" + expression + "$").MatchString(subject)
		require.Equal(t, want, matches(pattern, subject, '/'), "%q on %q, seed %d", pattern, subject, seed)
	}
}
