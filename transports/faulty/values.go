package faulty

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/tent-engine/tent/gocore/config"
	"github.com/tent-engine/tent/gocore/errs"
)

// Values of words. Each reader's error names the values that it takes; the parser adds the word and its place.

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

// positive reads a number that counts from 1.
func positive(into *uint64, v string) error {
	if err := number(into, v); err != nil || *into == 0 {
		return fmt.Errorf("takes a number of at least 1, not %q", v)
	}
	return nil
}

func probability(r *rule, v string) (err error) {
	if r.rate, err = strconv.ParseFloat(v, 64); err != nil || !(r.rate >= 0 && r.rate <= 1) {
		return fmt.Errorf("takes 0 to 1, not %q", v)
	}
	return nil
}

// size reads bytes.
func size(into *uint64, v string) (err error) {
	if *into, err = config.ParseSize(v); err != nil {
		return fmt.Errorf("takes a size such as 4096, 64KiB or 8MB, not %q", v)
	}
	return nil
}

// pace reads bytes a second; "/s" may stand behind the unit.
func pace(into *uint64, v string) error {
	if err := size(into, strings.TrimSuffix(v, "/s")); err != nil || *into == 0 {
		return fmt.Errorf("takes bytes a second such as 64KiB or 10MB/s, not %q", v)
	}
	return nil
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
