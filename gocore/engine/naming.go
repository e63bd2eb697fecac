package engine

import (
	"context"
	"errors"
	"strings"
	"syscall"

	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/event"
	"github.com/tent-engine/tent/gocore/meta"
	"github.com/tent-engine/tent/gocore/meta/names"
)

// openNames connects to the metadata service of the settings, and publishes our name there.
func (e *Engine) openNames(ctx context.Context) error {
	c := &e.config.Engine
	access := names.Access{User: c.MetadataUser, Password: c.MetadataPasswordFile, CA: c.MetadataCA,
		Certificate: c.MetadataCertificate, Key: c.MetadataKey}
	var service names.Service
	var err error
	switch c.MetadataType {
	case "etcd":
		var members []string
		for _, member := range strings.Split(c.MetadataServers, ",") {
			members = append(members, strings.TrimSpace(member))
		}
		service, err = names.NewEtcd(members, access, c.MetadataTimeout)
	case "redis":
		service, err = names.NewRedis(c.MetadataServers, access)
	case "http":
		service, err = names.NewHTTP(c.MetadataServers, access)
	default:
		return nil
	}
	if err != nil {
		return err
	}
	store := names.New(names.Options{Service: service, Lease: c.MetadataLease, Limit: c.MetadataTimeout,
		Network: e.network, Gone: e.isGone, Changed: e.nameChanged})
	e.store = store
	name := c.LocalSegmentName
	if name == "" {
		name = c.Name
	}
	if name == "" { // it finds others, and cannot be found
		return nil
	}
	if meta.IsLoopback(e.address) {
		e.log.Warn("the name of this engine leads to loopback: set rpc_server_hostname for other hosts and containers",
			"name", name, "address", e.address)
	}
	return store.Publish(ctx, name, e.address, e.credentials.ID().String())
}

// isGone reports that an engine is proved to be gone: its host refuses at its address, or another one answers there.
func (e *Engine) isGone(ctx context.Context, address, id string) bool {
	peer, err := e.client.Open(ctx, address)
	if err == nil {
		return peer.ID.String() != id
	}
	return errors.Is(err, syscall.ECONNREFUSED) || errs.CodeOf(err) == errs.PeerRestarted
}

// nameChanged hears that the metadata service has lost our name, and that it has it back.
func (e *Engine) nameChanged(cause error) {
	if cause == nil {
		e.announce(&event.Event{Kind: event.NameBack})
		return
	}
	e.announce(&event.Event{Kind: event.NameLost, Err: errs.From("name", cause)})
}
