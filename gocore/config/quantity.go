package config

import (
	"fmt"
	"math/big"
	"strings"
	"time"
)

// One language for sizes and times: settings, faults and the command line read it here, Python in tent/quantities.py.
// testdata/quantities.json holds both to the same answers.
//
//	size   4096   64KiB   8 MB   1.5G     B; K, M, G and T or KiB to TiB by 1024; KB to TB by 1000; in any case
//	time   20ms   5 s   1.5min   2h       ns, us, ms, s, min and h
//
// The unit of a size may be missing, that of a time may not: a bare number would be seconds in one place and
// milliseconds in another. A fraction must leave a whole number of bytes or nanoseconds. K, M, G and T are as in GNU
// coreutils.

var sizeUnits = map[string]int64{
	"": 1, "b": 1,
	"k": 1 << 10, "kib": 1 << 10, "kb": 1e3,
	"m": 1 << 20, "mib": 1 << 20, "mb": 1e6,
	"g": 1 << 30, "gib": 1 << 30, "gb": 1e9,
	"t": 1 << 40, "tib": 1 << 40, "tb": 1e12,
}

var timeUnits = map[string]int64{
	"ns": 1, "us": int64(time.Microsecond), "µs": int64(time.Microsecond), "ms": int64(time.Millisecond),
	"s": int64(time.Second), "min": int64(time.Minute), "h": int64(time.Hour),
}

// ParseSize reads a number of bytes, below 2^63.
func ParseSize(text string) (uint64, error) {
	n, ok := parseQuantity(strings.ToLower(text), sizeUnits)
	if !ok {
		return 0, fmt.Errorf(`%s is not a size such as 4096, "64KiB", "8MB" or "1.5G"`, show(text))
	}
	return uint64(n), nil
}

// ParseDuration reads a time, below 2^63 nanoseconds.
func ParseDuration(text string) (time.Duration, error) {
	n, ok := parseQuantity(text, timeUnits)
	if !ok {
		return 0, fmt.Errorf(`%s is not a time with its unit such as "20ms", "5 s" or "1.5min"`, show(text))
	}
	return time.Duration(n), nil
}

// parseQuantity reads digits, perhaps a fraction, perhaps blanks, and a unit.
func parseQuantity(text string, units map[string]int64) (int64, bool) {
	text = strings.Trim(text, " ")
	unit := strings.TrimLeft(text, "0123456789.")
	number := text[:len(text)-len(unit)]
	factor, known := units[strings.TrimLeft(unit, " ")]
	whole, fraction, dotted := strings.Cut(number, ".")
	if !known || whole == "" || (dotted && fraction == "") || strings.Contains(fraction, ".") || len(number) > 40 {
		return 0, false
	}
	n, _ := new(big.Rat).SetString(number)
	n.Mul(n, new(big.Rat).SetInt64(factor))
	if !n.IsInt() || !n.Num().IsInt64() {
		return 0, false
	}
	return n.Num().Int64(), true
}

// example is a text that a key with this unit takes beside its number; "" for a unit that is neither size nor time.
func example(unit string) string {
	switch unit {
	case "B", "KiB":
		return "64KiB"
	case "ns", "us", "ms", "s":
		return "20ms"
	}
	return ""
}

// measured reports whether t takes a text with a size or a time beside its number.
func (t Takes) measured() bool { return (t.Kind == Int || t.Kind == Float) && example(t.Unit) != "" }

// measure returns the canonical value of a text with a size or a time, in the unit of the key.
func (t Takes) measure(text string) (any, error) {
	n := int64(0)
	if strings.HasSuffix(t.Unit, "B") {
		bytes, err := ParseSize(text)
		if err != nil {
			return nil, err
		}
		n = int64(bytes)
	} else {
		d, err := ParseDuration(text)
		if err != nil {
			return nil, err
		}
		n = int64(d)
	}
	factor := units[t.Unit]
	if t.Kind == Float {
		return float64(n) / float64(factor), nil
	}
	if n%factor != 0 {
		return nil, fmt.Errorf("%s is not a whole number of %s", show(text), t.Unit)
	}
	return n / factor, nil
}
