// Package meta answers two questions before anything moves: where does the name of a segment lead, and is a peer on our
// own machine.
//
// Names are peer to peer unless a setting says otherwise: the name of a segment *is* the address of its engine, so no
// service has to run. Package names has the stores of services.
package meta

import "context"

// Store finds engines by name. All methods may be called from any goroutine and return by the end of ctx.
type Store interface {
	// Resolve returns where a name leads. InvalidArgument: the name is malformed; InvalidEntry: nobody has that name;
	// MetadataError: the store did not answer.
	Resolve(ctx context.Context, name string) (Target, error)
	// Publish makes name lead to the engine with an address and an id, for as long as the store is open.
	Publish(ctx context.Context, name, address, id string) error
	// Changed returns when a name leads to an engine, and not to that of a target; at the latest when ctx ends.
	Changed(ctx context.Context, name string, from Target)
	// Close withdraws the published names. The store must not be used afterwards.
	Close() error
}

// PeerToPeer is the Store that needs no service: a name is an address. The zero value is ready, and it holds nothing.
type PeerToPeer struct{}

var _ Store = PeerToPeer{}

// Resolve parses the name; see ParseTarget. The first call to the peer shows whether it is there.
func (PeerToPeer) Resolve(_ context.Context, name string) (Target, error) { return ParseTarget(name) }

// Publish has nothing to do: the address is the name.
func (PeerToPeer) Publish(context.Context, string, string, string) error { return nil }

// Changed waits for the end of ctx: an address does not change.
func (PeerToPeer) Changed(ctx context.Context, _ string, _ Target) { <-ctx.Done() }

// Close has nothing to withdraw.
func (PeerToPeer) Close() error { return nil }
