// Package config is the tree of settings: what may be said, what it means, what was said and by whom.
//
// One table (table.go, table_transports.go, table_rdma.go) lists every key with its type, range, default, source and
// help. Load fills it from the environment and from arguments, key by key:
//
//	default  <-  TENT_FAULTS  <-  MC_TENT_CONF  <-  TENT_CONF  <-  first argument  <-  ...  <-  last argument
//
// TENT_FAULTS is the text of "faults", and setting it allows them.
// Each source is JSON text, a path of a JSON file, or a map; keys are nested objects, paths ("transports/tcp/lanes"),
// or both mixed. A key that is unknown, of the wrong type or out of range is an error that names the key, what it takes
// and the nearest known key: a setting that is silently ignored costs its user a day.
//
// A key has an effect exactly when a field of Config is bound to it (bind.go) and, for keys of a transport, when that
// transport is built and usable. Every other known key is checked, kept and shown as inactive, so that upstream's
// files load; only "enable": true for a transport that cannot run is an error, because somebody counts on it.
//
// The package reads the environment through a function that it is given and imports no transport: the engine passes
// the names of those that are built.
package config

import (
	"time"

	"github.com/tent-engine/tent/gocore/errs"
)

// Config is one engine's effective settings. It is made by Load; its fields are read-only afterwards and may be read
// from any goroutine. Unavailable is called before the engine shares it.
type Config struct {
	Engine Engine
	TCP    TCP
	SHM    SHM
	File   File
	Rails  map[string]*Rail // by branch, see RailOf; every transport that has rails has an entry

	settings    []Setting
	index       map[string]int // of settings, by key
	values      []any          // of settings: canonical, see Takes
	origins     []string       // of settings: "default", "environment TENT_CONF=...", "argument"
	bound       map[string]any // pointers to fields, by key
	built       map[string]bool
	unavailable map[string]string // reasons, by transport
}

// Engine holds the settings of the engine itself and of the core.
type Engine struct {
	Name                 string // "" lets the engine choose
	RPCServerHostname    string // what Engine.address says; "" is loopback
	RPCServerPort        int    // 0 is any free port
	MetadataType         string
	LogLevel             string // "debug", "info", "warning" or "error"
	MergeRequests        bool
	MaxFailoverAttempts  int // 0 means no failover at all
	TransferStallTimeout time.Duration
	FenceTimeoutHost     time.Duration
	FenceTimeoutNetwork  time.Duration
	FenceTimeoutFile     time.Duration
	TransferSyncTimeout  time.Duration
	MaxPendingRequests   int
	MaxBatches           int
	NotificationQueue    int
	AllowFaults          bool
	Faults               string        // in the language of transports/faulty; "" unless AllowFaults
	AttemptTimeout       time.Duration // of one attempt, without a sign of life from its rail
	ResendRounds         int
	ResendInterval       time.Duration
	RailSuspectAfter     time.Duration
	RailCondemnAfter     time.Duration
	InlineBytes          uint64
	LinkWait             time.Duration // for a link that has had no rail yet
	OutageWait           time.Duration // for a link that has worked before
}

// TCP holds the settings of transports/tcp. A zero number or an empty text leaves the choice to the transport.
type TCP struct {
	Enable         bool
	Addresses      []string // of local ends; each is an IP address
	RailPairs      string   // "matched" or "all"
	Port           int
	Lanes          int
	Congestion     string
	DialTimeout    time.Duration
	UserTimeout    time.Duration
	Lease          time.Duration
	SliceBytes     uint64
	WindowBytes    uint64
	CreditBytes    uint64
	CreditRequests int
}

// SHM holds the settings of transports/shm. A zero number leaves the choice to the transport.
type SHM struct {
	CXLMountPath         string
	AsyncMemcpyThreshold int    // KiB
	Trust                string // "same-uid" or "none"
	AllowAnyTracer       bool
	CopyWorkers          int
}

// File holds the settings of transports/file, whose two transports are io_uring and buf-io. A zero number leaves the choice
// to the transport.
type File struct {
	Roots       []string // folders that files are opened from; none: no limit
	Descriptors int

	Direct           string // of io_uring: "auto" or "off"
	Depth            int
	UringSliceBytes  uint64
	UringWindowBytes uint64

	Workers             int // of buf-io
	BufferedSliceBytes  uint64
	BufferedWindowBytes uint64
}

// Rail holds the keys that every transport with rails takes under its own branch.
type Rail struct {
	ErrorThreshold   int           // errors inside ErrorWindow that pause a rail
	ErrorWindow      time.Duration // sliding
	Cooldown         time.Duration // of the first pause; each further one doubles it
	CooldownMax      time.Duration
	PromotionTimeout time.Duration // since a waiting class was last served; its head then gets one turn

	ByDeadline     bool // order inside a class by slack to the deadline
	AllowCrossNUMA bool // rails of other NUMA nodes than the memory's help

	HealthSensitivity int           // what a failure costs of a health of 1000
	HealthRecovery    int           // what a success gives back
	ProbeInterval     time.Duration // of a rail that is out
	SoftOutMax        float64       // share of a peer's rails that silence alone may take out

	PromotionPerEntry bool          // as many turns in PromotionTimeout as requests of the class wait
	Filtering         bool          // NICs take turns in refusing lower classes
	FilterInterval    time.Duration // of those turns
	SlotInterval      time.Duration // of the slots that the processes of a host share
	SlotBorrow        bool          // lower classes may use slots that nobody else wants
	SharedPath        string        // name of the memory that processes share; "" is off
}

// Options say what is around the settings.
type Options struct {
	// Env reads the environment, as os.Getenv does. Nil means that there is none.
	Env func(name string) string
	// Built names the transports of this build, as Info.Name gives them. One that the table does not know gets the
	// keys "enable" and those of rails under its own branch.
	Built []string
	// Settings are keys that transports bring beyond the table, with their full path ("transports/x/depth").
	Settings []Setting
}

// Load merges the environment and arguments into the defaults. An argument is a map[string]any, JSON as []byte, a
// string that is JSON (begins with "{") or else a path, or nil; later ones win. The error is InvalidArgument and names
// the source, the key, what the key takes and, for an unknown key, the nearest known one.
func Load(o Options, arguments ...any) (*Config, error) {
	c := newConfig(o)
	layers, err := readLayers(o.Env, arguments)
	if err != nil {
		return nil, err
	}
	for _, l := range layers {
		if err := c.apply(l); err != nil {
			return nil, err
		}
	}
	if err := c.check(); err != nil {
		return nil, err
	}
	for key, target := range c.bound {
		assign(target, c.settings[c.index[key]].Takes, c.values[c.index[key]])
	}
	return c, nil
}

// newConfig makes a tree of defaults.
func newConfig(o Options) *Config {
	c := &Config{index: map[string]int{}, built: map[string]bool{}, unavailable: map[string]string{},
		Rails: map[string]*Rail{}}
	for _, name := range o.Built {
		branch := branchOf(name)
		c.built[branch] = true
		if family, found := families[branch]; found {
			c.built[family] = true
		}
	}
	c.settings = known(o)
	c.values = make([]any, len(c.settings))
	c.origins = make([]string, len(c.settings))
	for i, s := range c.settings {
		c.index[s.Key], c.values[i], c.origins[i] = i, s.Default, OriginDefault
	}
	c.bind()
	for _, s := range o.Settings {
		c.bound[s.Key] = nil // read by Value; in effect because its transport declared it
	}
	return c
}

// Value returns the canonical value of a key: bool, int64, float64, string, []string, []float64, or decoded JSON for
// structures. It is for settings that transports brought by Options.Settings; an unknown key returns nil.
func (c *Config) Value(key string) any {
	if i, ok := c.index[canonical(key)]; ok {
		return c.values[i]
	}
	return nil
}

// Branch is the path of a transport's settings, "transports/tcp", from its name.
func Branch(transport string) string { return "transports/" + branchOf(transport) }

// RailOf returns the settings of a transport's rails, named as Info.Name or as its branch; nil if it has none.
func (c *Config) RailOf(transport string) *Rail { return c.Rails[branchOf(transport)] }

// Enabled reports whether a transport, named as Info.Name or as its branch, is built, usable and not switched off.
func (c *Config) Enabled(transport string) bool {
	branch := branchOf(transport)
	on, _ := c.Value(enableKey(branch)).(bool)
	return on && c.built[branch] && c.unavailable[branch] == ""
}

// Unavailable tells that a built transport cannot run here, for the reason that its Factory.Check gave. Its keys are
// inactive from now on. The error is not nil when "enable" was set to true for it rather than left at its default.
// The engine calls it before it shares the Config with other goroutines.
func (c *Config) Unavailable(transport string, reason error) error {
	branch := branchOf(transport)
	c.unavailable[branch] = reason.Error()
	return c.refuseEnabled(branch)
}

// refuseEnabled fails when a transport that cannot run was asked for by name.
func (c *Config) refuseEnabled(branch string) error {
	key := enableKey(branch)
	i, known := c.index[key]
	if !known || c.values[i] != true || c.origins[i] == OriginDefault {
		return nil
	}
	reason, code := c.whyInactive(branch), errs.DeviceNotFound
	switch {
	case reason == "":
		return nil
	case !c.built[branch]:
		code = errs.InvalidArgument
	}
	return errs.New(code, "config", "%s is true (%s), but %s", key, c.origins[i], reason).
		WithHint("set it to false, or leave it out to use %s where it can run", branch)
}

// whyInactive returns why the keys of a transport have no effect, "" if they have.
func (c *Config) whyInactive(branch string) string {
	if !c.built[branch] {
		return "transport " + branch + " is not part of this build"
	}
	if reason := c.unavailable[branch]; reason != "" {
		return "transport " + branch + " cannot run here: " + reason
	}
	return ""
}
