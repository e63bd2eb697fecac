// Package config is the tree of settings: the keys that there are, their meaning, the values given, and by whom.
//
// A key is declared once, as a tagged field: of Engine, of Rail, or of the Settings struct in a transport's own folder
// (Setting lists the tags). Parsing, defaults, ranges, help and Engine.config come from the tags. The keys that
// upstream has and nothing here reads are lines of inert.txt. Load fills the tree from the environment and from
// arguments, key by key:
//
//	default  <-  TENT_FAULTS  <-  MC_TENT_CONF  <-  variables.txt  <-  TENT_CONF  <-  first argument  <-  ...  <-  last
//
// TENT_FAULTS is the text of "faults", and setting it allows them. Those of variables.txt are upstream's, as
// MC_GID_INDEX, and stand for one key each.
// Each source is JSON text, a path of a JSON file, or a map; keys are nested objects, paths ("transports/x/lanes"),
// or both mixed. A key that is unknown, of the wrong type or out of range is an error that names the key, its range
// and the nearest known key: a setting that is silently ignored costs its user a day.
//
// A key has an effect exactly when a field has it and, for keys of a transport, when that transport is built and
// usable. Every other known key is checked, kept and shown as inactive, so that upstream's files load; only "enable":
// true for a transport that cannot run is an error, because somebody counts on it.
//
// The package reads the environment through a function that it is given. It imports and names no transport: the
// registry passes the table of names and settings (Options.Transports).
//
// # Where to read
//
//	config tree source           the tree, and the layers that fill it
//	fields takes shape quantity  a key from its tags, the values that it takes, and how people write these
//	engine rail                  the keys of the engine, and those of every transport with rails
//	transport declared settled   the keys of transports, of plug-ins, and of an Open without a tree
//	policy security timeouts     keys that depend on each other
//	nearest                      the known key that was meant
//	dump markdown typed inert    the tree as people and documents see it, and keys that nothing here reads
package config

import (
	"reflect"
	"slices"
	"strings"

	"github.com/tent-engine/tent/gocore/errs"
)

// Config is one engine's effective settings. It is made by Load; its fields are read-only afterwards and may be read
// from any goroutine. Unavailable is called before the engine shares it.
type Config struct {
	Engine Engine

	tree
	targets  map[string][]reflect.Value // fields, by key
	owners   map[string][]string        // names of the transports with this key in their struct
	carriers []carrier
}

// Options are the surroundings of the settings.
type Options struct {
	// Env reads the environment, as os.Getenv does. Nil means that there is none.
	Env func(name string) string
	// Transports is the table of names, with the settings of those that are built.
	Transports []Transport
}

// Load merges the environment and arguments into the defaults. The arguments are those of Read. The error is
// InvalidArgument and names the source, the key, the values that it takes and, for an unknown key, the nearest known
// one.
func Load(o Options, arguments ...any) (*Config, error) {
	sources, err := Read(o.Env, arguments...)
	if err != nil {
		return nil, err
	}
	return sources.Load(o.Transports)
}

// Load merges the sources into the defaults, with the table of names of Options. The errors are those of the function
// Load.
func (s Sources) Load(transports []Transport) (*Config, error) {
	c := newConfig(Options{Transports: transports})
	for _, l := range s {
		if err := c.apply(l); err != nil {
			return nil, err
		}
	}
	if err := c.check(); err != nil {
		return nil, err
	}
	for key, fields := range c.targets {
		i := c.index[key]
		for _, target := range fields {
			assign(target, c.settings[i].Takes, c.values[i])
		}
	}
	var err error
	if c.Engine.Policies, err = c.readPolicies(); err != nil {
		return nil, err
	}
	return c, nil
}

// newConfig makes a tree of defaults.
func newConfig(o Options) *Config {
	c := &Config{targets: map[string][]reflect.Value{}, owners: map[string][]string{}}
	var all []Setting
	for _, f := range fieldsOf(reflect.TypeFor[Engine](), "") {
		all = append(all, f.Setting)
		c.targets[f.Key] = []reflect.Value{reflect.ValueOf(&c.Engine).Elem().FieldByIndex(f.index)}
	}
	c.carriers = make([]carrier, len(o.Transports))
	for i, t := range o.Transports {
		c.carriers[i].Transport = t
		all = append(all, c.declare(&c.carriers[i])...)
	}
	all = append(all, inert()...) // last: a key that a transport of this build reads is its own
	slices.SortStableFunc(all, func(a, b Setting) int { return strings.Compare(group(a.Key), group(b.Key)) })
	c.tree = newTree(all)
	return c
}

// declare lists the keys of a transport and binds them to a struct of its own. A transport that is not built has only
// the switch.
func (c *Config) declare(t *carrier) []Setting {
	enable := Setting{Key: enableKey(t.branch()), Takes: Takes{Kind: Bool}, Source: "tent",
		Default: t.Settings != nil && !t.Off, Help: "Use transport " + t.branch() + "."}
	list := []Setting{enable}
	c.owners[enable.Key] = []string{t.Name}
	if t.Settings == nil {
		return list
	}
	required := Setting{Key: requiredKey(t.branch()), Takes: Takes{Kind: Bool}, Default: false, Source: "tent",
		Help: "A region that transport " + t.branch() +
			" cannot use is an error of register; otherwise it lives on the other transports."}
	list = append(list, required)
	c.owners[required.Key] = []string{t.Name}
	c.targets[enable.Key], c.targets[required.Key] = nil, nil // read by Enabled and Required
	t.settings = reflect.New(reflect.TypeOf(t.Settings)).Elem()
	for _, f := range fieldsOf(t.settings.Type(), "transports/"+t.branch()) {
		list = append(list, f.Setting)
		c.targets[f.Key] = append(c.targets[f.Key], t.settings.FieldByIndex(f.index))
		c.owners[f.Key] = append(c.owners[f.Key], t.Name)
	}
	return list
}

// group keeps the keys of a transport together, behind all others.
func group(key string) string {
	if rest, found := strings.CutPrefix(key, "transports/"); found {
		name, _, _ := strings.Cut(rest, "/")
		return "transports/" + name
	}
	return ""
}

// check looks at keys that depend on each other.
func (c *Config) check() error {
	for i := range c.carriers {
		if err := c.refuseEnabled(&c.carriers[i]); err != nil {
			return err
		}
	}
	if kind := c.value("metadata_type"); kind != "p2p" && c.value("metadata_servers") == "" {
		return errs.New(errs.InvalidArgument, "config", "metadata_type is %q (%s), but metadata_servers names none",
			kind, c.origins[c.index["metadata_type"]]).WithHint(`give the address of the service, or leave it at "p2p"`)
	}
	if err := c.checkFaults(); err != nil {
		return err
	}
	if err := c.checkSecurity(); err != nil {
		return err
	}
	if err := c.checkTimeouts(); err != nil {
		return err
	}
	return c.settle()
}

// checkFaults wants faults to be allowed wherever they are set: a text that was left in a file must not break a
// service.
func (c *Config) checkFaults() error {
	if c.value("faults") == "" || c.value("allow_faults") == true {
		return nil
	}
	return errs.New(errs.PermissionDenied, "config", "faults is set (%s), but allow_faults is false (%s)",
		c.origins[c.index["faults"]], c.origins[c.index["allow_faults"]]).
		WithHint("set allow_faults to true, or leave faults out")
}
