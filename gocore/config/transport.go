package config

import (
	"reflect"
	"slices"
	"strings"

	"github.com/tent-engine/tent/gocore/errs"
)

// Transport is one line of the registry's table of names: a transport of this build, or one that upstream knows and
// this build has not.
type Transport struct {
	Name      string   // as Info.Name gives it, in metrics and errors
	Number    uint8    // of hints: upstream's TransportType, from 64 on tent's own, from 80 plug-ins'; 0 for none
	Branch    string   // of its keys, below "transports"; "" is Name
	Spellings []string // other names in keys, policies and hints
	Off       bool     // it is used only where a setting enables it; one that cannot run is left out all the same
	Settings  any      // the zero value of its settings struct, with keys as tags; nil: it is not built
	Instead   string   // a transport of this build that does the same, where this one is not built
}

// WithRails returns lines for transports that take the keys of rails and no others, as those of tests do.
func WithRails(names ...string) []Transport {
	list := make([]Transport, len(names))
	for i, name := range names {
		list[i] = Transport{Name: name, Settings: Rail{}}
	}
	return list
}

func (t *Transport) branch() string {
	if t.Branch != "" {
		return t.Branch
	}
	return t.Name
}

// Goes reports whether the transport goes by a name.
func (t *Transport) Goes(name string) bool {
	return t.Name == name || t.Branch == name || slices.Contains(t.Spellings, name)
}

// Keys lists the settings that the transport declares itself, without its switch.
func (t *Transport) Keys() []Setting {
	if t.Settings == nil {
		return nil
	}
	var list []Setting
	for _, f := range fieldsOf(reflect.TypeOf(t.Settings), "transports/"+t.branch()) {
		list = append(list, f.Setting)
	}
	return list
}

// carrier is a transport inside a Config.
type carrier struct {
	Transport
	settings    reflect.Value // the struct in force; invalid if the transport is not built
	unavailable string        // why it cannot run here
}

// carrierOf finds a transport by any of its names; nil if there is none.
func (c *Config) carrierOf(name string) *carrier {
	for i := range c.carriers {
		if c.carriers[i].Goes(name) {
			return &c.carriers[i]
		}
	}
	return nil
}

// NameOf is the transport that upstream's TransportType or tent's own number means, "" for none.
func (c *Config) NameOf(number uint8) string {
	for i := range c.carriers {
		if number != 0 && c.carriers[i].Number == number {
			return c.carriers[i].Name
		}
	}
	return ""
}

// NumberOf is the number of a transport of any of its names, 0 for none; see NameOf.
func (c *Config) NumberOf(name string) uint8 {
	if found := c.carrierOf(name); found != nil {
		return found.Number
	}
	return 0
}

// BranchOf is the path of a transport's settings, "transports/x", from any of its names.
func (c *Config) BranchOf(transport string) string {
	if found := c.carrierOf(transport); found != nil {
		transport = found.branch()
	}
	return "transports/" + transport
}

// canonical replaces another spelling of a transport in a key.
func (c *Config) canonical(key string) string {
	rest, found := strings.CutPrefix(key, "transports/")
	if !found {
		return key
	}
	name, below, deeper := strings.Cut(rest, "/")
	if key = c.BranchOf(name); deeper {
		key += "/" + below
	}
	return key
}

// RailOf returns the settings of a transport's rails; nil if it has none.
func (c *Config) RailOf(transport string) *Rail {
	found := c.carrierOf(transport)
	if found == nil || !found.settings.IsValid() {
		return nil
	}
	if r, is := found.settings.Addr().Interface().(*Rail); is {
		return r
	}
	if f := found.settings.FieldByName("Rail"); f.IsValid() {
		r, _ := f.Addr().Interface().(*Rail)
		return r
	}
	return nil
}

// SettingsOf returns a pointer to a transport's settings struct with the values in force: the argument of its Open. It
// is nil for a transport that has no keys but those of rails.
func (c *Config) SettingsOf(transport string) any {
	found := c.carrierOf(transport)
	if found == nil || !found.settings.IsValid() || found.settings.Type() == reflect.TypeFor[Rail]() {
		return nil
	}
	return found.settings.Addr().Interface()
}

// Enabled reports whether a transport is built, usable and not switched off.
func (c *Config) Enabled(transport string) bool {
	found := c.carrierOf(transport)
	return found != nil && c.whyIdle(found) == "" && c.value(enableKey(found.branch())) == true
}

// Unavailable records that a built transport cannot run here, for the reason that its Factory.Check gave. Its keys are
// inactive from now on. The error is not nil when "enable" was set to true for it rather than left at its default.
// The engine calls it before it shares the Config with other goroutines.
func (c *Config) Unavailable(transport string, reason error) error {
	found := c.carrierOf(transport)
	if found == nil {
		return nil
	}
	found.unavailable = reason.Error()
	return c.refuseEnabled(found)
}

// refuseEnabled fails when a transport that cannot run was asked for by name. One that is off by default is enabled for
// the machines on which it can run.
func (c *Config) refuseEnabled(t *carrier) error {
	i := c.index[enableKey(t.branch())]
	reason := c.whyIdle(t)
	if reason == "" || c.values[i] != true || isDefault(c.origins[i]) || t.Off && t.settings.IsValid() {
		return nil
	}
	code, where := errs.DeviceNotFound, t.branch()+" where it can run"
	if !t.settings.IsValid() {
		code = errs.InvalidArgument
	}
	if t.Instead != "" {
		where = t.Instead + ", which does the same"
	}
	return errs.New(code, "config", "%s is true (%s), but %s", c.settings[i].Key, c.origins[i], reason).
		WithHint("set it to false, or leave it out to use %s", where)
}

// whyIdle returns why the keys of a transport have no effect, "" if they have.
func (c *Config) whyIdle(t *carrier) string {
	switch {
	case !t.settings.IsValid():
		return "transport " + t.branch() + " is not part of this build"
	case t.unavailable != "":
		return "transport " + t.branch() + " cannot run here: " + t.unavailable
	}
	return ""
}

// Required reports whether a region that the transport cannot use is an error.
func (c *Config) Required(transport string) bool {
	found := c.carrierOf(transport)
	return found != nil && found.settings.IsValid() && c.value(requiredKey(found.branch())) == true
}

func requiredKey(branch string) string { return "transports/" + branch + "/required" }

// enableKey is the switch of a transport.
func enableKey(branch string) string { return "transports/" + branch + "/enable" }
