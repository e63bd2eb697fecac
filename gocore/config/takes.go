package config

import (
	"encoding/json"
	"fmt"
	"math"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"
)

// Kind is the type of a setting's values.
type Kind uint8

// Kinds, each with the Go type of its canonical values.
const (
	Bool      Kind = iota // bool
	Int                   // int64
	Float                 // float64
	Text                  // string
	Texts                 // []string
	Floats                // []float64
	Structure             // decoded JSON: any
)

// Takes describes the values that a setting takes.
type Takes struct {
	Kind       Kind
	Min, Max   float64           // of Int and Float, and of each of Floats; both included
	Unit       string            // "s", "ms", "us", "ns", "B", "KiB", "Gbit/s" or ""
	Multiple   int64             // Int: values are multiples of it; 0 and 1 mean any
	PowerOfTwo bool              // Int
	Choices    []string          // of Text and of each of Texts; nil means any
	Spellings  map[string]string // Text: other spellings that people use, and the choice that each means
	Numeric    bool              // Int: a text of digits is taken too
	Path       bool              // Text: the canonical value of a relative path is absolute
	What       string            // Structure and checked texts: in words
	Check      func(any) error   // of a canonical value, beyond the above
}

// String describes the values in words, for errors and documents: "an integer from 1 to 64".
func (t Takes) String() string {
	switch {
	case t.What != "":
		return t.What
	case t.Choices != nil && t.Kind == Texts:
		return "a list of " + strings.Join(t.Choices, ", ")
	case t.Choices != nil:
		return "one of " + strings.Join(t.Choices, ", ")
	}
	switch t.Kind {
	case Bool:
		return "true or false"
	case Int:
		return "an integer " + t.span()
	case Float:
		return "a number " + t.span()
	case Texts:
		return "a list of texts"
	case Floats:
		return "a list of numbers " + t.span()
	case Structure:
		return "an object"
	}
	return "a text"
}

func (t Takes) span() string {
	s := "from " + number(t.Min) + " to " + number(t.Max)
	if t.Unit != "" {
		s += " " + t.Unit
	}
	switch {
	case t.PowerOfTwo:
		s += ", a power of two"
	case t.Multiple > 1:
		s += ", a multiple of " + strconv.FormatInt(t.Multiple, 10)
	}
	return s
}

// number prints a bound without an exponent where people would write it without one.
func number(f float64) string {
	if f == math.Trunc(f) && math.Abs(f) < 1e18 {
		return strconv.FormatInt(int64(f), 10)
	}
	return strconv.FormatFloat(f, 'g', -1, 64)
}

// convert returns v as the canonical value of t. The error describes the mistake alone; the caller adds the key.
func (t Takes) convert(v any) (any, error) {
	if text, isText := v.(string); isText && t.measured() {
		measured, err := t.measure(text)
		if err != nil {
			return nil, fmt.Errorf("%w; it takes %s", err, t.words())
		}
		v = measured
	}
	out, ok := t.coerce(v)
	if !ok {
		return nil, fmt.Errorf("%s has the wrong type: it takes %s", show(v), t.words())
	}
	if !t.inside(out) {
		return nil, fmt.Errorf("%s is out of range: it takes %s", show(v), t.words())
	}
	if t.Check != nil {
		if err := t.Check(out); err != nil {
			return nil, fmt.Errorf("%w; it takes %s", err, t)
		}
	}
	if t.Path {
		return absolute(out.(string))
	}
	return out, nil
}

// absolute returns where a path leads now. Files are read again while an engine runs, and a program may change its
// working directory meanwhile. Nothing is cleaned: a .. behind a symbolic link is the kernel's to resolve.
func absolute(text string) (any, error) {
	if text == "" || path.IsAbs(text) {
		return text, nil
	}
	folder, err := os.Getwd()
	if err != nil {
		return nil, fmt.Errorf("%s is relative to a working directory that cannot be found: %w", show(text), err)
	}
	return strings.TrimSuffix(folder, "/") + "/" + text, nil
}

// words is String, with an example of a text where one is taken beside a number.
func (t Takes) words() string {
	if t.measured() {
		return t.String() + `, or a text like "` + example(t.Unit) + `"`
	}
	return t.String()
}

// coerce changes only the representation of v.
func (t Takes) coerce(v any) (any, bool) {
	switch t.Kind {
	case Bool:
		b, ok := v.(bool)
		return b, ok
	case Int:
		if s, isText := v.(string); isText && t.Numeric {
			n, err := strconv.ParseInt(strings.TrimSpace(s), 10, 64)
			return n, err == nil
		}
		return toInt(v)
	case Float:
		return toFloat(v)
	case Text:
		s, ok := v.(string)
		if choice, other := t.Spellings[s]; other {
			s = choice
		}
		return s, ok
	case Texts:
		return toList(v, func(v any) (string, bool) { s, ok := v.(string); return s, ok })
	case Floats:
		return toList(v, toFloat)
	}
	return v, true
}

// inside checks ranges and choices of a canonical value.
func (t Takes) inside(v any) bool {
	switch v := v.(type) {
	case int64:
		return float64(v) >= t.Min && float64(v) <= t.Max && (t.Multiple == 0 || v%t.Multiple == 0) &&
			(!t.PowerOfTwo || v&(v-1) == 0)
	case float64:
		return v >= t.Min && v <= t.Max // false for NaN
	case []float64:
		return !slices.ContainsFunc(v, func(f float64) bool { return !(f >= t.Min && f <= t.Max) })
	case string:
		return t.Choices == nil || slices.Contains(t.Choices, v)
	case []string:
		other := func(s string) bool { return !slices.Contains(t.Choices, s) }
		return t.Choices == nil || !slices.ContainsFunc(v, other)
	}
	return true
}

// atMost returns the greatest canonical number that is taken and not more than limit.
func (t Takes) atMost(limit any) any {
	if n, ok := limit.(int64); ok {
		return n - n%max(t.Multiple, 1)
	}
	return limit
}

// parseTakes reads the words of a tag or of a line of inert.txt. They are a range ("1..16", "4KiB..64MiB", "64..16384,
// a power of two", "0..64MiB, a multiple of 4096"), anyNumber, choices ("matched|all"), or a name of kinds.
func parseTakes(kind Kind, words, unit string) (Takes, error) {
	if t, found := kinds[words]; found {
		t.Unit = unit
		return t, nil
	}
	t := Takes{Kind: kind, Unit: unit}
	switch kind {
	case Int, Float, Floats:
		if words == anyNumber {
			t.widen()
			return t, nil
		}
		return t, t.parseRange(words)
	case Text, Texts:
		if words != "" {
			t.Choices = strings.Split(words, "|")
		}
		return t, nil
	}
	if words != "" {
		return t, fmt.Errorf("%q describes no values", words)
	}
	return t, nil
}

// anyNumber are the words for a number without a range. Only plug-ins have some.
const anyNumber = "any"

// intMost is the greatest float64 that is an int64. It excludes the stand-in of toInt for greater numbers.
const intMost = 1<<63 - 1<<10

// widen takes every number that a field can hold, in the unit of the field.
func (t *Takes) widen() {
	t.Max, t.What = math.MaxFloat64, "a number"
	if t.Kind == Int {
		t.Max, t.What = float64(intMost/units[t.Unit]), "an integer"
	}
	if t.Min = -t.Max; t.Unit != "" {
		t.What += " of " + t.Unit
	}
}

func (t *Takes) parseRange(words string) (err error) {
	span, rest, _ := strings.Cut(words, ", ")
	low, high, found := strings.Cut(span, "..")
	if !found {
		return fmt.Errorf("%q is no range", words)
	}
	if t.Min, err = parseNumber(low); err != nil {
		return err
	}
	if t.Max, err = parseNumber(high); err != nil {
		return err
	}
	multiple, found := strings.CutPrefix(rest, "a multiple of ")
	switch {
	case found:
		t.Multiple, err = strconv.ParseInt(multiple, 10, 64)
	case rest == "a power of two":
		t.PowerOfTwo = true
	case rest != "":
		err = fmt.Errorf("%q says nothing about a number", rest)
	}
	return err
}

// sizes are the units in which tags and inert.txt write bounds and defaults.
var sizes = [...]struct {
	suffix string
	factor float64
}{{"KiB", 1 << 10}, {"MiB", 1 << 20}, {"GiB", 1 << 30}, {"TiB", 1 << 40}}

func parseNumber(text string) (float64, error) {
	factor := 1.0
	for _, size := range sizes {
		if digits, found := strings.CutSuffix(text, size.suffix); found {
			text, factor = digits, size.factor
		}
	}
	f, err := strconv.ParseFloat(text, 64)
	return f * factor, err
}

// toInt takes any integer, and a float only when nothing is lost. A number that does not fit an int64 becomes its
// nearest, which every range excludes.
func toInt(v any) (int64, bool) {
	switch v := v.(type) {
	case int:
		return int64(v), true
	case int64:
		return v, true
	case uint64:
		return int64(min(v, math.MaxInt64)), true
	case json.Number:
		if n, err := v.Int64(); err == nil {
			return n, true
		}
		f, err := v.Float64()
		if err != nil {
			return 0, false
		}
		return toInt(f)
	case float64:
		switch {
		case v != math.Trunc(v): // NaN too
			return 0, false
		case v >= math.MaxInt64:
			return math.MaxInt64, true
		case v <= math.MinInt64:
			return math.MinInt64, true
		}
		return int64(v), true
	}
	return 0, false
}

func toFloat(v any) (float64, bool) {
	switch v := v.(type) {
	case float64:
		return v, true
	case json.Number:
		f, err := v.Float64()
		return f, err == nil
	}
	n, ok := toInt(v)
	return float64(n), ok
}

func toList[T any](v any, convert func(any) (T, bool)) ([]T, bool) {
	if list, ok := v.([]T); ok {
		return slices.Clone(list), true
	}
	list, ok := v.([]any)
	if !ok {
		return nil, false
	}
	out := make([]T, len(list))
	for i, e := range list {
		if out[i], ok = convert(e); !ok {
			return nil, false
		}
	}
	return out, true
}

// show prints a user's value for an error, cut where it is long.
func show(v any) string {
	s := fmt.Sprint(v)
	if text, ok := v.(string); ok {
		s = strconv.Quote(text)
	}
	if len(s) > 80 {
		s = strings.ToValidUTF8(s[:77], "") + "..."
	}
	return s
}
