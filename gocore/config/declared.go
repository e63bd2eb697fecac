package config

import (
	"fmt"
	"reflect"
	"regexp"
	"strconv"

	"github.com/tent-engine/tent/gocore/errs"
)

// Declared is a setting of a transport that is not compiled in: it comes while the program runs. The texts are those of
// the tags of a field, see Setting.
type Declared struct {
	Key     string // one name, without a path
	Kind    string // "bool", "int", "float" or "text"
	Takes   string // range or choices, "" for any
	Default string
	Unit    string
	Help    string
}

var declaredKinds = map[string]reflect.Type{"bool": reflect.TypeFor[bool](), "int": reflect.TypeFor[int64](),
	"float": reflect.TypeFor[float64](), "text": reflect.TypeFor[string]()}

var declaredKey = regexp.MustCompile(`^[a-z][a-z0-9_]{0,63}$`)

// Declare makes the zero value of a settings struct with these keys and those of rails, for Transport.Settings. The
// error names the setting that cannot be.
func Declare(list []Declared) (any, error) {
	rail := reflect.TypeFor[Rail]()
	taken := map[string]bool{"enable": true, "required": true}
	for _, f := range fieldsOf(rail, "") {
		taken[f.Key] = true
	}
	fields := []reflect.StructField{{Name: rail.Name(), Type: rail, Anonymous: true}}
	for i, d := range list {
		kind, known := declaredKinds[d.Kind]
		switch {
		case !declaredKey.MatchString(d.Key):
			return nil, undeclared(d, "a key is up to 64 lower case letters, digits and _, and begins with a letter")
		case taken[d.Key]:
			return nil, undeclared(d, "every transport has this key, or it is declared twice")
		case !known:
			return nil, undeclared(d, "kind %q is none of bool, int, float, text", d.Kind)
		case units[d.Unit] == 0:
			return nil, undeclared(d, "unit %q is none of B, KiB, s, ms, us, ns", d.Unit)
		}
		taken[d.Key] = true
		f := reflect.StructField{Name: "Declared" + strconv.Itoa(i), Type: kind, Tag: d.tag()}
		s, err := parseField(f, reflect.Zero(kind))
		if err != nil {
			return nil, undeclared(d, "%v", err)
		}
		if _, err := s.Takes.convert(s.Default); err != nil {
			return nil, undeclared(d, "its default: %v", err)
		}
		fields = append(fields, f)
	}
	return reflect.Zero(reflect.StructOf(fields)).Interface(), nil
}

func (d Declared) tag() reflect.StructTag {
	takes := d.Takes
	if takes == "" && (d.Kind == "int" || d.Kind == "float") {
		takes = anyNumber
	}
	return reflect.StructTag(fmt.Sprintf("key:%q takes:%q unit:%q default:%q help:%q", d.Key, takes, d.Unit, d.Default,
		d.Help))
}

func undeclared(d Declared, format string, args ...any) error {
	return errs.New(errs.InvalidArgument, "config", "setting %q: %s", d.Key, fmt.Sprintf(format, args...))
}

// DeclaredValues returns the values of a struct that Declare made, as texts in the order of the list and in their own
// units. given is the result of Config.SettingsOf; nil stands for the defaults.
func DeclaredValues(list []Declared, given any) []string {
	texts := make([]string, len(list))
	if given == nil {
		for i := range list {
			texts[i] = list[i].Default
		}
		return texts
	}
	v := reflect.Indirect(reflect.ValueOf(given))
	for i := range list {
		name := "Declared" + strconv.Itoa(i)
		f, _ := v.Type().FieldByName(name)
		s, err := parseField(f, v.FieldByName(name))
		if err != nil {
			continue // Declare has parsed it
		}
		texts[i] = fmt.Sprint(valueOf(v.FieldByName(name), s.Takes))
	}
	return texts
}

// PlugIns returns the value of the setting "plugins", before the others can be understood: plug-ins bring settings of
// their own.
func (s Sources) PlugIns() ([]string, error) {
	var list []string
	for _, l := range s {
		given, is := l.document["plugins"]
		if !is || given == nil {
			continue
		}
		v, err := kinds["plug-ins"].convert(given)
		if err != nil {
			return nil, errs.Wrap(errs.InvalidArgument, "config", fmt.Errorf("%s: plugins: %w", l.origin, err))
		}
		list = v.([]string)
	}
	return list, nil
}
