package config

import (
	"errors"
	"slices"

	"github.com/tent-engine/tent/gocore/errs"
)

// modeKey is a key that there is not. A user of it counts on the protection of a mode, so it is refused by name.
const modeKey = "security/mode"

var errModeKey = errors.New(modeKey + ": not in this version (the keys choose the mode); security takes cluster_key, " +
	"local_users, or ca, cert, key and allow")

// securityModes lists the keys of each mode, the one that names it first.
var securityModes = [][]string{{"security/cluster_key"}, {"security/local_users"}, {"insecure"},
	{"security/ca", "security/cert", "security/key", "security/allow"}}

// checkSecurity wants one mode: of two, somebody believes in the stricter one.
func (c *Config) checkSecurity() error {
	var given []string // a key of each mode
	for _, mode := range securityModes {
		if at := slices.IndexFunc(mode, c.isGiven); at >= 0 {
			given = append(given, mode[at])
		}
	}
	if len(given) < 2 {
		return nil
	}
	return errs.New(errs.InvalidArgument, "config", "%s (%s) and %s (%s) exclude each other", given[0],
		c.origins[c.index[given[0]]], given[1], c.origins[c.index[given[1]]]).WithHint("leave one of them out")
}

// isGiven reports whether a key has another value than none.
func (c *Config) isGiven(key string) bool {
	switch v := c.value(key).(type) {
	case bool:
		return v
	case string:
		return v != ""
	case []string:
		return len(v) > 0
	}
	return false
}
