package security

import (
	"slices"
	"strings"

	"github.com/tent-engine/tent/gocore/errs"
)

// Names are patterns of identities, as security/allow and the peers of a region have them. They are immutable, and any
// goroutine may use them.
//
//	spiffe://prod/prefill/*    one segment of a path: spiffe://prod/prefill/7, and not spiffe://prod/prefill/7/gpu
//	spiffe://prod/**           any number of segments
//	dns:*.decode.svc           one label of a name: decode-0.decode.svc
//	uid:1000, cluster:41e3...  the identities of the modes local and cluster_key
//	*                          every peer that is admitted
type Names struct{ patterns []string }

// Bounds of a list.
const (
	patternsMax = 256
	patternMax  = 2048 // bytes, as of a SPIFFE ID
)

// kinds of identities, by the beginning of their texts, with the character that ends a part of them.
var kinds = [...]struct {
	prefix string
	parts  byte
}{{"spiffe://", '/'}, {"dns:", '.'}, {"uid:", 0}, {"cluster:", 0}}

// ParseNames reads a list of patterns; of is the setting or the argument that has it. The error is InvalidArgument.
func ParseNames(of string, patterns []string) (*Names, error) {
	if len(patterns) > patternsMax {
		return nil, errs.New(errs.InvalidArgument, "security", "%s has %d patterns, more than %d", of, len(patterns),
			patternsMax)
	}
	n := &Names{make([]string, 0, len(patterns))}
	for _, p := range patterns {
		switch {
		case p == "*" || p == "**":
			p = "**"
		case partsOf(p) < 0 || len(p) > patternMax || !printable(p):
			return nil, errs.New(errs.InvalidArgument, "security", "%s: %q is no pattern of identities", of,
				errs.Printable(p, 255)).WithHint(`it takes "spiffe://domain/path/*", "dns:*.example.org", "uid:1000", ` +
				`"cluster:..." and "*"`)
		case strings.HasPrefix(p, "dns:"):
			p = strings.ToLower(p)
		}
		n.patterns = append(n.patterns, p)
	}
	slices.Sort(n.patterns)
	n.patterns = slices.Compact(n.patterns)
	return n, nil
}

// partsOf returns the character that ends a part of an identity or a pattern of its kind, -1 if it is of none.
func partsOf(text string) int {
	for _, k := range kinds {
		if strings.HasPrefix(text, k.prefix) && len(text) > len(k.prefix) {
			return int(k.parts)
		}
	}
	return -1
}

func printable(text string) bool {
	return !strings.ContainsFunc(text, func(r rune) bool { return r <= ' ' || r >= 0x7f })
}

// Admit reports whether one of an engine's identities matches; identities are separated by spaces, as Proof has them.
func (n *Names) Admit(identities string) bool {
	for identity := range strings.FieldsSeq(identities) {
		if n.matchOne(identity) {
			return true
		}
	}
	return false
}

func (n *Names) matchOne(identity string) bool {
	for _, p := range n.patterns {
		if p == "**" || matches(p, identity, byte(max(0, partsOf(p)))) {
			return true
		}
	}
	return false
}

// String returns the patterns in order: equal texts are equal rules.
func (n *Names) String() string { return strings.Join(n.patterns, " ") }

// matches reports whether a text matches a pattern, in which * stands for any characters but the end of a part, and **
// for any. After a mismatch it goes back to the last star of each kind alone: no pattern takes exponential time.
func matches(pattern, text string, end byte) bool {
	type mark struct{ pattern, text int }
	one, many := mark{-1, 0}, mark{-1, 0}
	p, t := 0, 0
	for t < len(text) || p < len(pattern) {
		switch {
		case strings.HasPrefix(pattern[p:], "**"):
			many, one = mark{p + 2, t}, mark{-1, 0}
			p += 2
		case p < len(pattern) && pattern[p] == '*':
			one = mark{p + 1, t}
			p++
		case p < len(pattern) && t < len(text) && pattern[p] == text[t]:
			p, t = p+1, t+1
		case one.pattern >= 0 && one.text < len(text) && text[one.text] != end:
			one.text++
			p, t = one.pattern, one.text
		case many.pattern >= 0 && many.text < len(text):
			many.text++
			one = mark{-1, 0}
			p, t = many.pattern, many.text
		default:
			return false
		}
	}
	return true
}
