package engine

import (
	"context"
	"slices"
	"strings"

	"github.com/tent-engine/tent/gocore/config"
	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/segment"
	"github.com/tent-engine/tent/gocore/transport"
)

// Plug is a transport that an engine may use, in order of preference.
type Plug struct {
	Factory  transport.Factory
	Settings any // the argument of Open; nil: the branch of the transport in the tree of settings
}

// Plugs are transports with the settings of the tree.
func Plugs(factories ...transport.Factory) []Plug {
	list := make([]Plug, len(factories))
	for i := range factories {
		list[i].Factory = factories[i]
	}
	return list
}

// tableOf makes the table of names of an engine that was given no settings.
func tableOf(plugs []Plug) []config.Transport {
	list := make([]config.Transport, len(plugs))
	for i, plug := range plugs {
		list[i] = config.Transport{Name: plug.Factory.Name(), Settings: config.Rail{}}
		if c, is := plug.Factory.(transport.Configured); is {
			list[i].Settings = c.Settings()
		}
	}
	return list
}

// settings returns the settings for a transport's Open.
func (e *Engine) settings(plug Plug) any {
	if plug.Settings != nil {
		return plug.Settings
	}
	return e.config.SettingsOf(plug.Factory.Name())
}

// plugIn opens the transports that are enabled and can work here, and takes the platforms that can.
func (e *Engine) plugIn(ctx context.Context, o Options, undo *steps) error {
	e.addPlatforms(o.Platforms)
	plugs := o.Transports
	if len(plugs) > segment.TransportsMax {
		return errs.New(errs.InvalidArgument, "open", "%d transports are more than %d", len(plugs),
			segment.TransportsMax)
	}
	for i, plug := range plugs {
		name := plug.Factory.Name()
		p := &port{engine: e, index: uint8(i), name: name, number: e.config.NumberOf(name),
			required: e.config.Required(name), links: map[transport.Link]attachedLink{}}
		p.info.Name = name // explanations and hints name a transport that is not open, too
		e.ports = append(e.ports, p)
		if !e.config.Enabled(p.name) { // not even asked: a vendor's library stays in the process once it is loaded
			p.reason = "transports/" + p.name + "/enable is false"
			continue
		}
		if reason := plug.Factory.Check(); reason != nil {
			if err := e.leaveOut(p, reason); err != nil {
				return err
			}
			continue
		}
		opened, reason, err := e.openPlug(ctx, plug, p)
		if err != nil {
			return err
		}
		if reason != nil {
			if err := e.leaveOut(p, reason); err != nil {
				return err
			}
			e.log.Warn("a transport is not used", "transport", p.name, "why", p.reason)
			continue
		}
		undo.add(func() {
			if err := abandon(ctx, opened); err != nil {
				e.log.Warn("an engine that did not open", "transport", p.name, "err", err)
			}
		})
		p.adopt(opened)
	}
	e.pollers.gather(e.ports)
	return e.checkExceptions()
}

// openPlug opens a transport, or returns the reason why it is left out.
func (e *Engine) openPlug(ctx context.Context, plug Plug, p *port) (opened transport.Transport, reason, err error) {
	opened, err = plug.Factory.Open(ctx, e.settings(plug), p, p)
	if errs.CodeOf(err) == errs.DeviceNotFound {
		return nil, err, nil
	}
	if err != nil {
		return nil, nil, err
	}
	if reason := e.exposes(new(opened.Info())); reason != nil {
		return nil, reason, abandon(ctx, opened)
	}
	return opened, nil, nil
}

// abandon closes a transport of an engine that cannot open, or must not use it. The context of Open may have ended.
func abandon(ctx context.Context, opened transport.Transport) error {
	ctx, done := context.WithTimeout(context.WithoutCancel(ctx), closeGrace)
	defer done()
	return opened.Close(ctx)
}

// leaveOut notes why a transport is not used, which is an error where somebody counts on it.
func (e *Engine) leaveOut(p *port, reason error) error {
	p.reason = reason.Error()
	return e.config.Unavailable(p.name, reason)
}

// adopt makes an opened transport the port's, or none, with the optional interfaces that are asked for often.
func (p *port) adopt(opened transport.Transport) {
	p.transport, p.reason, p.info, p.keys = opened, "", transport.Info{Name: p.name}, nil
	if opened != nil {
		p.info = opened.Info()
	}
	if p.info.Replaces || p.info.Delegates {
		p.keys = newOwnKeys(p)
	}
	p.filer = nil
	if p.info.Files {
		p.filer, _ = transport.Find[transport.Filer](opened)
	}
	p.notifier, _ = transport.Find[transport.Notifier](opened)
	p.inliner, _ = transport.Find[transport.Inliner](opened)
	p.prober, _ = transport.Find[transport.Prober](opened)
	p.matcher, _ = transport.Find[transport.Matcher](opened)
	p.witness, _ = transport.Find[transport.Witness](opened)
	p.epochs, _ = transport.Find[transport.EpochReader](opened)
}

// portNamed returns the port of a transport, nil if there is none.
func (e *Engine) portNamed(name string) *port {
	for _, p := range e.ports {
		if p.name == name {
			return p
		}
	}
	return nil
}

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
