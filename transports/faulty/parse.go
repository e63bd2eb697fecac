package faulty

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/transport"
)

// verb is one kind of fault.
type verb uint8

const (
	reject verb = iota + 1
	lose
	blackhole
	dropCompletion
	delay
	short
	down
	failInstall
	heal
	seed
)

// rule is one fault of a statement, with the statement's selectors and parameters. It never changes.
type rule struct {
	verb               verb
	text               string // as it was written, for Explain
	transport, peer    string // "" any
	rail, op, class    int    // -1 any
	rate               float64
	afterBytes         uint64
	afterSlices, count uint64 // count 0: any number of times
	delay              time.Duration
	code               errs.Code
	scope              errs.Scope
	side               errs.Side
	collateral, silent bool
	scoped             bool // scope was given
	seed               uint64
}

// word is one word of the language.
type word struct {
	verb verb // 0 for selectors and parameters
	set  func(r *rule, value string) error
	flag bool // takes no value
}

func flagged(v verb) word { return word{verb: v, flag: true} }

// words is the vocabulary; the error for an unknown word names the nearest of these.
var words = map[string]word{
	"transport": {set: func(r *rule, v string) error { r.transport = wildcard(v); return nil }},
	"peer":      {set: func(r *rule, v string) error { r.peer = wildcard(v); return nil }},
	"rail":      {set: func(r *rule, v string) error { return index(&r.rail, v, math.MaxUint16) }},
	"class":     {set: func(r *rule, v string) error { return index(&r.class, v, math.MaxUint8) }},
	"op": {set: func(r *rule, v string) error {
		return choose(&r.op, v, "*", -1, "READ", int(transport.Read), "WRITE", int(transport.Write))
	}},

	"submit_fail_rate":     {verb: reject, set: func(r *rule, v string) error { r.toLink(); return probability(r, v) }},
	"status_corrupt_rate":  {verb: lose, set: func(r *rule, v string) error { r.toLink(); return probability(r, v) }},
	"fail_after_n_submits": {verb: reject, set: func(r *rule, v string) error { r.toLink(); return number(&r.afterSlices, v) }},
	"fail_install":         flagged(failInstall),

	"reject": flagged(reject), "lose": flagged(lose), "blackhole": flagged(blackhole), "drop_completion": flagged(dropCompletion),
	"short": flagged(short), "down": flagged(down), "heal": flagged(heal),
	"delay": {verb: delay, set: func(r *rule, v string) (err error) {
		if r.delay, err = time.ParseDuration(v); err != nil || r.delay < 0 || r.delay > time.Hour {
			return fmt.Errorf("takes a duration up to 1h such as 2ms, not %q", v)
		}
		return nil
	}},
	"seed": {verb: seed, set: func(r *rule, v string) error { return number(&r.seed, v) }},

	"rate":         {set: probability},
	"after_bytes":  {set: func(r *rule, v string) error { return size(&r.afterBytes, v) }},
	"after_slices": {set: func(r *rule, v string) error { return number(&r.afterSlices, v) }},
	"count":        {set: func(r *rule, v string) error { return number(&r.count, v) }},
	"code":         {set: code},
	"scope": {set: func(r *rule, v string) error {
		r.scoped = true
		return choose(&r.scope, v, "slice", errs.ScopeSlice, "rail", errs.ScopeRail, "link", errs.ScopeLink, "transport", errs.ScopeTransport)
	}},
	"side": {set: func(r *rule, v string) error {
		return choose(&r.side, v, "unknown", errs.SideUnknown, "local", errs.SideLocal, "remote", errs.SideRemote, "path", errs.SidePath)
	}},
	"collateral": {flag: true, set: func(r *rule, _ string) error { r.collateral = true; return nil }},
	"silent":     {flag: true, set: func(r *rule, _ string) error { r.silent = true; return nil }},
}

// toLink gives the seed's faults their scope, unless the statement says another.
func (r *rule) toLink() {
	if !r.scoped {
		r.scope = errs.ScopeLink
	}
}

// parse reads a text. Its errors name line and column, the word, and what was meant.
func parse(text string) ([]*rule, error) {
	var rules []*rule
	for n, line := range strings.Split(text, "\n") {
		if comment := strings.IndexByte(line, '#'); comment >= 0 {
			line = line[:comment]
		}
		column := 1
		for statement := range strings.SplitSeq(line, ";") {
			made, err := parseStatement(statement, n+1, column)
			if err != nil {
				return nil, err
			}
			rules = append(rules, made...)
			column += len(statement) + 1
		}
	}
	return rules, nil
}

// placed is a word with its place in the text.
type placed struct {
	name, value  string
	valued       bool
	line, column int
}

func (p placed) fail(hint, format string, args ...any) error {
	e := errs.New(errs.InvalidArgument, "faults", "line %d, column %d: %s", p.line, p.column, fmt.Sprintf(format, args...))
	if hint != "" {
		return e.WithHint("%s", hint)
	}
	return e
}

// split finds the words of a statement.
func split(statement string, line, column int) (list []placed) {
	for at := 0; at < len(statement); {
		if strings.IndexByte(" \t\r", statement[at]) >= 0 {
			at++
			continue
		}
		end := at
		for end < len(statement) && strings.IndexByte(" \t\r", statement[end]) < 0 {
			end++
		}
		p := placed{line: line, column: column + at}
		p.name, p.value, p.valued = strings.Cut(statement[at:end], "=")
		list = append(list, p)
		at = end
	}
	return list
}

// parseStatement makes one rule for each fault of a statement.
func parseStatement(statement string, line, column int) ([]*rule, error) {
	list := split(statement, line, column)
	if len(list) == 0 {
		return nil, nil
	}
	base := rule{rail: -1, op: -1, class: -1, rate: 1, code: errs.Lost, scope: errs.ScopeRail, side: errs.SidePath, text: strings.TrimSpace(statement)}
	var faults []placed
	seen := map[string]bool{}
	for _, p := range list {
		w, known := words[p.name]
		switch {
		case !known:
			return nil, p.fail("did you mean "+nearest(p.name)+"?", "unknown word %q", p.name)
		case seen[p.name]:
			return nil, p.fail("", "%s is there twice", p.name)
		case w.flag && p.valued:
			return nil, p.fail("", "%s takes no value", p.name)
		case !w.flag && p.value == "":
			return nil, p.fail("", "%s needs a value", p.name)
		}
		if seen[p.name] = true; w.verb != 0 {
			faults = append(faults, p)
		} else if err := w.set(&base, p.value); err != nil {
			return nil, p.fail("", "%s %v", p.name, err)
		}
	}
	if len(faults) == 0 {
		return nil, list[0].fail("add one of reject, lose, blackhole, drop_completion, delay=, short, down, heal", "nothing happens in %q", base.text)
	}
	var rules []*rule
	for _, p := range faults {
		r := base
		if r.verb = words[p.name].verb; words[p.name].set != nil {
			if err := words[p.name].set(&r, p.value); err != nil {
				return nil, p.fail("", "%s %v", p.name, err)
			}
		}
		rules = append(rules, &r)
	}
	return rules, nil
}

func wildcard(v string) string {
	if v == "*" {
		return ""
	}
	return v
}

func index(into *int, v string, most int) error {
	if v == "*" {
		*into = -1
		return nil
	}
	n, err := strconv.Atoi(v)
	if err != nil || n < 0 || n > most {
		return fmt.Errorf("takes * or 0 to %d, not %q", most, v)
	}
	*into = n
	return nil
}

func number(into *uint64, v string) (err error) {
	if *into, err = strconv.ParseUint(v, 10, 63); err != nil {
		return fmt.Errorf("takes a number, not %q", v)
	}
	return nil
}

func probability(r *rule, v string) (err error) {
	if r.rate, err = strconv.ParseFloat(v, 64); err != nil || !(r.rate >= 0 && r.rate <= 1) {
		return fmt.Errorf("takes 0 to 1, not %q", v)
	}
	return nil
}

// size reads bytes with an optional unit.
func size(into *uint64, v string) error {
	for shift, unit := range []string{"", "KiB", "MiB", "GiB"} {
		text, has := strings.CutSuffix(v, unit)
		if unit == "" {
			text, has = v, strings.Trim(v, "0123456789") == ""
		}
		if n, err := strconv.ParseUint(text, 10, 63); has && err == nil && n <= math.MaxUint64>>(10*shift) {
			*into = n << (10 * shift)
			return nil
		}
	}
	return fmt.Errorf("takes bytes such as 4096, 64KiB or 8MiB, not %q", v)
}

// code finds a code by its name.
func code(r *rule, v string) error {
	for c := errs.Code(1); c < 400; c++ {
		if c.String() == v && !strings.HasPrefix(v, "CODE_") {
			r.code = c
			return nil
		}
	}
	return fmt.Errorf("takes the name of a code such as LOST or PEER_UNREACHABLE, not %q", v)
}

// choose sets one of several named values, given as name, value, name, value.
func choose[T any](into *T, v string, options ...any) error {
	var names []string
	for i := 0; i < len(options); i += 2 {
		if names = append(names, options[i].(string)); v == options[i] {
			*into = options[i+1].(T)
			return nil
		}
	}
	return fmt.Errorf("takes one of %s, not %q", strings.Join(names, ", "), v)
}

// nearest is the word with the fewest changes from name.
func nearest(name string) string {
	best, least := "", math.MaxInt
	for candidate := range words {
		if d := distance(name, candidate); d < least || d == least && candidate < best {
			best, least = candidate, d
		}
	}
	return best
}

// distance is Levenshtein's with swapped neighbours as one change; a long word counts as its first 64 bytes.
func distance(a, b string) int {
	a = a[:min(len(a), 64)]
	rows := make([][]int, len(a)+1)
	for i := range rows {
		rows[i] = make([]int, len(b)+1)
		for j := range rows[i] {
			if i == 0 || j == 0 {
				rows[i][j] = i + j
				continue
			}
			cost := 1
			if a[i-1] == b[j-1] {
				cost = 0
			}
			rows[i][j] = min(rows[i-1][j-1]+cost, rows[i-1][j]+1, rows[i][j-1]+1)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				rows[i][j] = min(rows[i][j], rows[i-2][j-2]+1)
			}
		}
	}
	return rows[len(a)][len(b)]
}
