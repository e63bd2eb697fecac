package config

import (
	"fmt"

	"github.com/tent-engine/tent/gocore/errs"
)

// plannedSecurity names the keys of modes that do not exist yet. A user of one counts on its protection, so it is
// refused by name.
var plannedSecurity = map[string]string{
	"security/mode": "the keys choose the mode", "security/cert": "mode mtls", "security/key": "mode mtls",
	"security/ca": "mode mtls", "security/allow": "mode mtls", "security/data": "signed or encrypted data",
	"security/audit": "an audit trail",
}

// checkPlanned refuses a key of plannedSecurity.
func checkPlanned(key string) error {
	if of, planned := plannedSecurity[key]; planned {
		return fmt.Errorf("%s: not in this version (%s); security takes cluster_key, or local_users", key, of)
	}
	return nil
}

// checkSecurity wants one mode: of two, somebody believes in the stricter one.
func (c *Config) checkSecurity() error {
	var given []string
	for _, key := range []string{"security/cluster_key", "security/local_users", "insecure"} {
		switch v := c.value(key).(type) {
		case bool:
			if v {
				given = append(given, key)
			}
		case string:
			if v != "" {
				given = append(given, key)
			}
		case []string:
			if len(v) > 0 {
				given = append(given, key)
			}
		}
	}
	if len(given) < 2 {
		return nil
	}
	return errs.New(errs.InvalidArgument, "config", "%s (%s) and %s (%s) exclude each other", given[0],
		c.origins[c.index[given[0]]], given[1], c.origins[c.index[given[1]]]).WithHint("leave one of them out")
}
