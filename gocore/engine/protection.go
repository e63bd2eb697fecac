package engine

import (
	"slices"
	"strings"

	"github.com/tent-engine/tent/gocore/config"
	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/transport"
)

// protectionOf returns the least that the setting security/data demands of bytes between hosts.
func protectionOf(c *config.Engine) transport.Protection {
	p, _ := transport.ParseProtection(c.Data) // the setting takes no other name
	return p
}

// exposes returns why a transport may not be used: its bytes leave this host as they are, and security/data demands
// more. A peer finds it switched off then, so it is used neither by us nor against us. Within a host the kernel keeps
// bytes from other users, and orders to a peer's engine carry none.
func (e *Engine) exposes(info *transport.Info) *errs.Error {
	if e.protection == transport.Auth || info.Protects || info.SameHost || info.Files || info.Delegates ||
		slices.Contains(e.config.Engine.DataExcept, info.Name) {
		return nil
	}
	return errs.New(errs.NoRoute, "open", "security/data is %v, and its bytes go between hosts as they are",
		e.protection).
		WithHint("security/data_except names transports that may carry them, on a fabric that nobody else reaches")
}

// checkExceptions refuses a name in security/data_except that no transport has.
func (e *Engine) checkExceptions() error {
	for _, name := range e.config.Engine.DataExcept {
		if e.portNamed(name) == nil {
			return errs.New(errs.InvalidArgument, "open", "security/data_except: there is no transport %q", name).
				WithHint("there are %s", strings.Join(e.Transports(), ", "))
		}
	}
	return nil
}
