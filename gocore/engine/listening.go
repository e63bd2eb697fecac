package engine

import (
	"net"
	"net/netip"
	"slices"
	"strconv"

	"github.com/tent-engine/tent/gocore/control"
	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/meta"
	"github.com/tent-engine/tent/gocore/segment"
	"github.com/tent-engine/tent/gocore/transport"
)

// listen binds the control plane to the host name of the settings and to each address of a transport.
func (e *Engine) listen(o Options, undo *steps) error {
	c := &o.Config.Engine
	var err error
	if e.host, err = meta.FindHost(c.RPCServerHostname, c.RPCAdvertiseHostname, meta.ThisMachine()); err != nil {
		return err
	}
	wanted, err := e.listenAddresses(o)
	if err != nil {
		return err
	}
	options := control.Options{Self: e.Self, Credentials: e.credentials, Log: e.log, Dial: o.Dial, Admitted: e.admitted,
		Called: e.called, Proved: e.proved, Besides: e.homes(o, wanted),
		Limits: control.Limits{Connections: c.MaxConnections, ConnectionsPerPeer: c.MaxPeerConnections,
			Strangers: c.MaxStrangers, CallsPerSecond: c.MaxCalls, Reception: int(c.MaxReception)},
		Refused: func(reason transport.Refusal, from string, cause error) {
			e.refusals.count(planeControl, reason, from, cause)
		}}
	server, err := control.Listen(wanted, options)
	if err != nil {
		return err
	}
	e.server = server
	undo.add(e.closeServer)
	if err := e.nameAddresses(server.Addresses()); err != nil {
		return errs.Wrap(errs.Internal, "engine: listen", err)
	}
	e.client = control.NewClient(options)
	undo.add(e.client.Close)
	return nil
}

// listenAddresses returns the addresses of the control plane, each with the port of the settings.
func (e *Engine) listenAddresses(o Options) (list []string, err error) {
	host, port := e.host.Bind.String(), strconv.Itoa(o.Config.Engine.RPCServerPort)
	if err := e.mayListen("rpc_server_hostname", host); err != nil {
		return nil, err
	}
	list = []string{net.JoinHostPort(host, port)}
	for _, plug := range o.Transports {
		listener, is := e.settings(plug).(transport.Listener)
		if !is || !o.Config.Enabled(plug.Factory.Name()) {
			continue
		}
		for _, address := range listener.ListenAddresses() {
			if err := e.mayListen(e.config.BranchOf(plug.Factory.Name())+"/addresses", address); err != nil {
				return nil, err
			}
			list = append(list, net.JoinHostPort(address, port))
		}
	}
	return list, nil
}

// nameAddresses notes by which addresses peers reach the server that is bound to these.
func (e *Engine) nameAddresses(bound []string) error {
	_, port, err := net.SplitHostPort(bound[0])
	if err != nil {
		return err
	}
	if e.port, err = strconv.Atoi(port); err != nil {
		return err
	}
	e.address = net.JoinHostPort(e.host.Name, port)
	if e.name == "" {
		e.name = e.address
	}
	reachable := append(bound, net.JoinHostPort(e.host.Data.String(), port)) // also behind a wildcard
	slices.Sort(reachable)
	others := slices.DeleteFunc(slices.Compact(reachable), func(a string) bool {
		at, err := netip.ParseAddrPort(a)
		return a == e.address || err != nil || at.Addr().IsUnspecified()
	})
	e.others = others[:min(len(others), segment.AddressesMax)]
	return nil
}

// homes are the addresses of NICs that transports have found, none where the engine listens on loopback alone, or where
// nothing says whom to admit.
func (e *Engine) homes(o Options, wanted []string) (list []netip.Addr) {
	if !slices.ContainsFunc(wanted, beyondLoopback) {
		return nil
	}
	for _, plug := range o.Transports {
		if homed, is := e.settings(plug).(transport.Homed); is && o.Config.Enabled(plug.Factory.Name()) {
			list = append(list, homed.HomeAddresses()...)
		}
	}
	return slices.DeleteFunc(list, func(a netip.Addr) bool {
		return a.IsLoopback() || a.IsLinkLocalUnicast() || e.credentials.MayListen("rpc_server_hostname", a) != nil
	})
}

// beyondLoopback reports an address of which others than this machine may know. A name may be one.
func beyondLoopback(address string) bool {
	at, err := netip.ParseAddrPort(address)
	return err != nil || !at.Addr().Unmap().IsLoopback()
}

// mayListen refuses an address beyond loopback where nothing says whom to admit. Everything that the engine listens on
// passes here, by the name of its setting.
func (e *Engine) mayListen(setting, host string) error {
	addresses := []netip.Addr{netip.IPv6Unspecified()} // the meaning of no host
	if literal, err := netip.ParseAddr(host); err == nil {
		addresses[0] = literal
	} else if host != "" {
		if addresses, err = meta.ThisMachine().Lookup(host); err != nil {
			return errs.Wrap(errs.InvalidArgument, "listen", err).WithHint("the host in %s is unknown", setting)
		}
	}
	for _, address := range addresses {
		if err := e.credentials.MayListen(setting, address); err != nil {
			return err
		}
	}
	return nil
}
