package faulty

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"sync/atomic"

	"github.com/tent-engine/tent/gocore/errs"
)

// parse reads a text. Its errors name line and column, the word, and a likely one.
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
	e := errs.New(errs.InvalidArgument, "faults", "line %d, column %d: %s", p.line, p.column,
		fmt.Sprintf(format, args...))
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
	base := rule{rail: -1, op: -1, class: -1, rate: 1, count: math.MaxUint64, code: errs.Lost, scope: errs.ScopeRail,
		side: errs.SidePath, text: strings.TrimSpace(statement)}
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
		return nil,
			list[0].fail("add a fault, such as reject, lose, drop, blackhole, delay=2ms, slow=10MiB, down or heal",
				"nothing happens in %q", base.text)
	}
	var rules []*rule
	for _, p := range faults {
		r := base
		r.hits = new(atomic.Uint64)
		if r.verb = words[p.name].verb; words[p.name].set != nil {
			if err := words[p.name].set(&r, p.value); err != nil {
				return nil, p.fail("", "%s %v", p.name, err)
			}
		}
		if err := refuse(p, &r, list); err != nil {
			return nil, err
		}
		rules = append(rules, &r)
	}
	return rules, nil
}

// refuse names a word of a statement that one of its faults would ignore.
func refuse(fault placed, r *rule, list []placed) error {
	if r.silent && !slices.Contains(silenced, r.verb) {
		return fault.fail("", "%s cannot be silent", fault.name)
	}
	for _, p := range list {
		if (r.verb == down || r.verb == reset) && slices.Contains(aboutSlices, p.name) {
			return p.fail("it strikes whole rails, when it is injected", "%s takes no %s", fault.name, p.name)
		}
	}
	return nil
}

// aboutSlices are the words that choose slices or tell their errors; down and reset take none of them.
var aboutSlices = []string{"op", "class", "nth", "every", "rate", "after_bytes", "after_slices", "count", "code",
	"scope", "side", "collateral"}

// silenced are the faults that take the parameter silent.
var silenced = []verb{blackhole, drop, dropCompletion, truncate, controlDown}
