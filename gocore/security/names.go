package security

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/transport"
)

// Names are patterns of the names that engines prove: their identities and their IDs. security/allow has them, and so
// have the peers of a region or a lease, the identity of an open, and disconnect. They are immutable, and any goroutine
// may use them.
//
//	spiffe://prod/prefill/*    one segment of a path: spiffe://prod/prefill/7, and not spiffe://prod/prefill/7/gpu
//	spiffe://prod/**           any number of segments
//	dns:*.decode.svc           one label of a name: decode-0.decode.svc; ** any number of them
//	uid:1000                   a user, in mode local
//	cluster:41e3...            the holders of a key file: 32 hexadecimal digits
//	id:9f0c...                 one engine: the 32 digits of its ID, in every mode
//	id:9f0c76b1d24e5a83*       one engine by the first 16 digits or more, likewise a cluster
//	*                          every peer that is admitted
//
// A peer has the access if one of its names matches one of the patterns; an empty list matches nobody. An ID is a
// fingerprint, and an attacker may make keys until one begins as a pattern does: 16 digits are 2^64 of them.
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
	defect func(rest string) string // of a pattern behind its prefix, "" for none
}{{"spiffe://", '/', badPath}, {"dns:", '.', badName}, {"uid:", 0, badUser}, {"cluster:", 0, badFingerprint},
	{"id:", 0, badFingerprint}}

// Digits of a fingerprint, and the fewest of a pattern.
const (
	fingerprintDigits    = 2 * len(transport.ID{})
	fingerprintDigitsMin = 16
)

func badFingerprint(rest string) string {
	digits, begins := strings.CutSuffix(rest, "*")
	switch {
	case strings.Trim(digits, "0123456789abcdef") != "":
		return "a fingerprint has hexadecimal digits alone, and a * may stand for the last ones"
	case !begins && len(digits) != fingerprintDigits, begins && len(digits) > fingerprintDigits:
		return fmt.Sprintf("a fingerprint has %d digits, and this one has %d", fingerprintDigits, len(digits))
	case begins && len(digits) < fingerprintDigitsMin:
		return fmt.Sprintf("%d digits before a * are too few: an attacker finds a key that begins so; give %d or more",
			len(digits), fingerprintDigitsMin)
	}
	return ""
}

func badUser(rest string) string {
	if _, err := strconv.ParseUint(rest, 10, 32); err != nil {
		return "a user is a number"
	}
	return ""
}

func badName(rest string) string {
	if slices.Contains(strings.Split(rest, "."), "") {
		return "a label is empty"
	}
	return ""
}

func badPath(rest string) string {
	switch {
	case slices.Contains(strings.Split(rest, "/"), ""):
		return "a segment of the path is empty"
	case strings.ContainsAny(rest, ":@%?#"):
		return "no SPIFFE ID has one of the characters :@%?#"
	}
	return ""
}

// ParseNames reads a list of patterns; of is the setting or the argument that has it. The error is InvalidArgument.
func ParseNames(of string, patterns []string) (*Names, error) {
	if len(patterns) > patternsMax {
		return nil, errs.New(errs.InvalidArgument, "security", "%s has %d patterns, more than %d", of, len(patterns),
			patternsMax)
	}
	n := &Names{make([]string, 0, len(patterns))}
	for _, p := range patterns {
		pattern, defect := parsePattern(p)
		if defect != "" {
			return nil, errs.New(errs.InvalidArgument, "security", "%s: %q is no pattern of identities: %s", of,
				errs.Printable(p, 255), defect).WithHint(`it takes "spiffe://domain/path/*", "dns:*.example.org", ` +
				`"uid:1000", "cluster:" or "id:" with a fingerprint, and "*"`)
		}
		n.patterns = append(n.patterns, pattern)
	}
	slices.Sort(n.patterns)
	n.patterns = slices.Compact(n.patterns)
	return n, nil
}

// parsePattern returns a pattern as it is matched, or its defect.
func parsePattern(p string) (pattern, defect string) {
	switch {
	case p == "*" || p == "**":
		return "**", ""
	case len(p) > patternMax:
		return "", fmt.Sprintf("it has %d bytes, more than %d", len(p), patternMax)
	case !printable(p):
		return "", "it has a space, or a character that is not ASCII"
	}
	if !strings.HasPrefix(p, "spiffe://") {
		p = strings.ToLower(p)
	}
	for _, k := range kinds {
		if rest, is := strings.CutPrefix(p, k.prefix); is {
			return p, k.defect(rest)
		}
	}
	return "", "it begins with no kind of identity"
}

func printable(text string) bool {
	return !strings.ContainsFunc(text, func(r rune) bool { return r <= ' ' || r >= 0x7f })
}

// Admit reports whether one of an engine's names matches; names are separated by spaces, see transport.Peer.Names.
func (n *Names) Admit(identities string) bool {
	for identity := range strings.FieldsSeq(identities) {
		for _, p := range n.patterns {
			if matches(p, identity, partsOf(p)) {
				return true
			}
		}
	}
	return false
}

// partsOf returns the character that ends a part of a pattern, 0 if nothing does.
func partsOf(pattern string) byte {
	for _, k := range kinds {
		if strings.HasPrefix(pattern, k.prefix) {
			return k.parts
		}
	}
	return 0
}

// IDsAlone reports whether all patterns are of engines' IDs, which every mode proves.
func (n *Names) IDsAlone() bool {
	return !slices.ContainsFunc(n.patterns, func(p string) bool { return !strings.HasPrefix(p, "id:") })
}

// String returns the patterns in order: equal texts are equal rules.
func (n *Names) String() string {
	if len(n.patterns) == 0 {
		return "nobody"
	}
	return strings.Join(n.patterns, " ")
}

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
