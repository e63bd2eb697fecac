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
	for _, p := range []string{"", "prefill", "http://a/b", "dns:", "dns:a b", "spiffe://\x00", "spiffe:a",
		"dns:" + strings.Repeat("a", 3000)} {
		_, err := ParseNames("security/allow", []string{p})
		require.Equal(t, errs.InvalidArgument, errs.CodeOf(err), p)
		require.ErrorContains(t, err, "security/allow")
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
