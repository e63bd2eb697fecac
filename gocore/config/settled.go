package config

import (
	"fmt"
	"reflect"
	"slices"

	"github.com/tent-engine/tent/gocore/errs"
)

// Settled returns the settings that a transport's Open was given, complete and checked. given is an S, a *S or nil.
// Zero fields mean their defaults, wherever 0 is not a value that the key takes; fields without a key, and those of an
// embedded Rail, which are the core's, are left alone. Errors are InvalidArgument and name the key and the values that
// it takes.
func Settled[S any](given any, branch string) (S, error) {
	var s S
	switch g := given.(type) {
	case nil:
	case S:
		s = g
	case *S:
		if g != nil {
			s = *g
		}
	default:
		return s, errs.New(errs.InvalidArgument, branch, "settings are a %T, not a %T", given, s)
	}
	v := reflect.ValueOf(&s).Elem()
	fields := slices.DeleteFunc(fieldsOf(v.Type(), "transports/"+branch),
		func(f field) bool { return f.ofRail(v.Type()) })
	all := make([]Setting, len(fields))
	for i := range fields {
		all[i] = fields[i].Setting
	}
	t := newTree(all)
	for i := range fields {
		if err := t.take(i, v, &fields[i]); err != nil {
			return s, err
		}
	}
	if err := t.settle(); err != nil {
		return s, err
	}
	for i := range fields {
		assign(v.FieldByIndex(fields[i].index), fields[i].Takes, t.values[i])
	}
	return s, nil
}

// ofRail reports whether the field is one of an embedded Rail.
func (f *field) ofRail(of reflect.Type) bool {
	return len(f.index) > 1 && of.FieldByIndex(f.index[:len(f.index)-1]).Type == reflect.TypeFor[Rail]()
}

// take reads one field of a struct.
func (t *tree) take(i int, of reflect.Value, f *field) error {
	source := of.FieldByIndex(f.index)
	if source.IsZero() {
		return nil
	}
	v, err := f.Takes.convert(valueOf(source, f.Takes))
	if err != nil {
		return errs.Wrap(errs.InvalidArgument, "config", fmt.Errorf("%s: %w", f.Key, err))
	}
	t.values[i], t.origins[i] = v, OriginArgument
	return nil
}
