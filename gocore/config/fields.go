package config

import (
	"encoding/json"
	"fmt"
	"path"
	"reflect"
	"slices"
	"strings"
	"sync"
	"time"
)

// Setting is one key: a tagged field of a settings struct, or a line of inert.txt.
//
// The tags of a field are, after the model of restic's options:
//
//	key      path below the struct's branch; "../file/roots" reaches a branch that several transports share
//	takes    range, choices or a name of kinds, see parseTakes
//	unit     "s", "ms", "us", "ns", "B", "KiB": a time.Duration or a uint64 of bytes is kept in its own unit
//	default  "= words" describes a default that Compute fills in
//	atmost   keys below the same branch that this one must not exceed; a value that nobody has set gives way
//	of       the branch that has the key, where several transports share one struct
//	from     the origin of the key: a seed or upstream; tent's own without
//	help     one sentence for people
type Setting struct {
	Key      string // path with "/"
	Takes    Takes
	Default  any    // canonical, see Kind
	Computed string // in words, of a default that depends on the machine
	Source   string // the origin of the key: a seed, upstream, or tent
	Help     string // one sentence for people

	atMost []string
	same   string // the key of which this one is an older name; both must agree
}

// Computer is a settings struct with defaults that depend on the machine. Compute fills them into a zero struct.
type Computer interface{ Compute() }

// field is a setting with the place of its value in a struct.
type field struct {
	Setting
	index []int
}

// layout names the fields of a struct below a branch.
type layout struct {
	of     reflect.Type
	branch string
}

// layouts keeps the fields of each layout, since reading tags was a third of the time that an engine needs to open. Its
// size is bounded by the types of the program.
var layouts sync.Map // layout to []field

// fieldsOf lists the tagged fields of a struct. A wrong tag is a programmer's mistake that any Load finds. The list is
// the caller's. Computed defaults are computed anew in each call: they follow the machine.
func fieldsOf(of reflect.Type, branch string) []field {
	computed := reflect.New(of)
	if c, is := computed.Interface().(Computer); is {
		c.Compute()
	}
	known, found := layouts.Load(layout{of, branch})
	if !found {
		known, _ = layouts.LoadOrStore(layout{of, branch}, parseFields(of, branch, computed.Elem()))
	}
	fields := slices.Clone(known.([]field))
	for i := range fields {
		if f := &fields[i]; f.Computed != "" {
			f.Default = valueOf(computed.Elem().FieldByIndex(f.index), f.Takes)
		}
	}
	return fields
}

func parseFields(of reflect.Type, branch string, computed reflect.Value) []field {
	var fields []field
	for _, f := range reflect.VisibleFields(of) {
		key, tagged := f.Tag.Lookup("key")
		if !tagged || (f.Tag.Get("of") != "" && f.Tag.Get("of") != path.Base(branch)) {
			continue
		}
		s, err := parseField(f, computed.FieldByIndex(f.Index))
		if err != nil {
			panic(fmt.Sprintf("config: %s.%s: %v", of, f.Name, err))
		}
		s.Key = path.Join(branch, key)
		for _, other := range strings.Fields(f.Tag.Get("atmost")) {
			s.atMost = append(s.atMost, path.Join(branch, other))
		}
		fields = append(fields, field{s, f.Index})
	}
	return fields
}

func parseField(f reflect.StructField, computed reflect.Value) (s Setting, err error) {
	unit := f.Tag.Get("unit")
	if s.Takes, err = parseTakes(kindOf(f.Type, unit), f.Tag.Get("takes"), unit); err != nil {
		return s, err
	}
	s.Help, s.Source = f.Tag.Get("help"), f.Tag.Get("from")
	if s.Source == "" {
		s.Source = "tent"
	}
	words, isComputed := strings.CutPrefix(f.Tag.Get("default"), "= ")
	if isComputed {
		s.Computed, s.Default = words, valueOf(computed, s.Takes)
		return s, nil
	}
	s.Default, err = s.Takes.parseDefault(f.Tag.Get("default"))
	return s, err
}

// parseDefault reads a default as tags and inert.txt write it. No text is the zero value of the kind.
func (t Takes) parseDefault(text string) (any, error) {
	switch t.Kind {
	case Bool:
		return text == "true", nil
	case Int, Float:
		f, err := 0.0, error(nil)
		if text != "" {
			f, err = parseNumber(text)
		}
		if t.Kind == Float {
			return f, err
		}
		return int64(f), err
	case Text:
		return text, nil
	}
	if text == "" {
		return t.zero(), nil
	}
	var v any
	if err := json.Unmarshal([]byte(text), &v); err != nil {
		return nil, err
	}
	return t.convert(v)
}

func (t Takes) zero() any {
	switch t.Kind {
	case Texts:
		return []string(nil)
	case Floats:
		return []float64(nil)
	}
	return nil
}

var durationType = reflect.TypeFor[time.Duration]()

// kindOf is the kind of a field's values. Seconds may have fractions, smaller units have none.
func kindOf(t reflect.Type, unit string) Kind {
	switch {
	case t.Kind() == reflect.Pointer:
		return kindOf(t.Elem(), unit)
	case t == durationType && unit == "s":
		return Float
	case t.Kind() == reflect.Bool:
		return Bool
	case t.Kind() == reflect.Float64:
		return Float
	case t.Kind() == reflect.String:
		return Text
	case t.Kind() == reflect.Slice && t.Elem().Kind() == reflect.String:
		return Texts
	case t.Kind() == reflect.Slice && t.Elem().Kind() == reflect.Float64:
		return Floats
	case t.Kind() == reflect.Slice, t.Kind() == reflect.Map:
		return Structure
	}
	return Int
}

// units are the factors of fields that keep nanoseconds or bytes.
var units = map[string]int64{
	"s": int64(time.Second), "ms": int64(time.Millisecond), "us": int64(time.Microsecond), "ns": 1,
	"B": 1, "KiB": 1 << 10, "": 1,
}

// assign stores a canonical value in a field. One that is a pointer keeps a value of 0 apart from none.
func assign(target reflect.Value, takes Takes, v any) {
	if target.Kind() == reflect.Pointer {
		target.Set(reflect.New(target.Type().Elem()))
		target = target.Elem()
	}
	factor := units[takes.Unit]
	switch v := v.(type) {
	case bool:
		target.SetBool(v)
	case string:
		target.SetString(v)
	case []string:
		target.Set(reflect.ValueOf(slices.Clone(v)))
	case []float64:
		target.Set(reflect.ValueOf(slices.Clone(v)))
	case []any, map[string]any: // of structures, which their readers do not change
		if reflect.TypeOf(v).AssignableTo(target.Type()) {
			target.Set(reflect.ValueOf(v))
		}
	case float64:
		if target.Kind() == reflect.Float64 {
			target.SetFloat(v)
		} else {
			target.SetInt(int64(v * float64(factor)))
		}
	case int64:
		if target.CanUint() {
			target.SetUint(uint64(v * factor))
		} else {
			target.SetInt(v * factor)
		}
	}
}

// valueOf returns the canonical value of a field: the inverse of assign. It rounds up, so that a value beyond a bound
// by less than its unit stays beyond it.
func valueOf(source reflect.Value, takes Takes) any {
	source = reflect.Indirect(source)
	factor := units[takes.Unit]
	switch takes.Kind {
	case Bool:
		return source.Bool()
	case Text:
		return source.String()
	case Texts:
		return source.Interface().([]string)
	case Floats:
		return source.Interface().([]float64)
	case Structure:
		return source.Interface()
	case Float:
		if source.Kind() == reflect.Float64 {
			return source.Float()
		}
		return float64(source.Int()) / float64(factor)
	}
	if source.CanUint() {
		n, _ := toInt(source.Uint())
		return (n + factor - 1) / factor
	}
	n := source.Int()
	switch {
	case n%factor == 0:
		return n / factor
	case n < 0:
		return n/factor - 1 // away from 0, so that a range from 0 refuses it
	}
	return n/factor + 1
}
