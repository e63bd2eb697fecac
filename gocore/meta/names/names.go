// Package names finds engines by name in a service: etcd, Redis, or the metadata server of Mooncake over HTTP.
//
// An engine publishes one record under its name, with a lease: the service forgets it when it is not renewed for a
// while, and Names renews it for as long as the engine lives. Nothing else depends on the service. Engines that have
// found each other talk directly, so transfers go on while it is away, and a name that it lost is published again when
// it is back.
package names

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"maps"
	"strings"
	"sync"
	"time"

	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/meta"
)

// Service keeps small values under keys. Its methods may be called from any goroutine and return by the end of ctx.
type Service interface {
	// Get returns a value, nil if there is none.
	Get(ctx context.Context, key string) ([]byte, error)
	// Swap puts a value in the place of another one, of nil for none. It ends after lease unless it is renewed. False
	// means that another value is there.
	Swap(ctx context.Context, key string, old, value []byte, lease time.Duration) (bool, error)
	// Renew makes a value last for lease from now on. False means that another value is there, or none.
	Renew(ctx context.Context, key string, value []byte, lease time.Duration) (bool, error)
	// Remove removes a value, and leaves another one there.
	Remove(ctx context.Context, key string, value []byte) error
	// Watch sends when the value of a key may have changed: once when the watch has begun, and then after each change.
	// The channel is closed at the end of ctx, or earlier if the watch is broken. Hints that nobody took are one.
	Watch(ctx context.Context, key string) <-chan struct{}
	// Close ends the connections.
	Close() error
	// String names kind and address of the service.
	String() string
}

const (
	prefix      = "tent/engines/"
	recordMax   = 4096 // bytes of a record
	nameMax     = 253  // bytes of a name
	renewals    = 3    // a lease
	closeLimit  = time.Second
	nameAllowed = "letters, digits, dots, dashes and underscores"
)

// record is the value under the name of an engine, as JSON.
type record struct {
	Format  int    `json:"format"`
	Address string `json:"address"`
	ID      string `json:"id"`
	Network string `json:"network,omitempty"` // in which a loopback address leads there (meta.NetworkID)
}

const format = 1

// Options of Names. All are required.
type Options struct {
	Service Service
	Lease   time.Duration // a name that is not renewed for so long ends
	Limit   time.Duration // of one question to the service
	Network string        // ours, as meta.NetworkID
	// Gone reports that the engine of another record under our name is proved to be gone.
	Gone func(ctx context.Context, address, id string) bool
	// Changed hears that a published name is lost, with the cause, and with nil that it is back. It does not block.
	Changed func(cause error)
}

// Names is a meta.Store over a service.
type Names struct {
	options Options
	stop    context.CancelFunc
	running sync.WaitGroup
	closing context.Context

	mu   sync.Mutex
	own  map[string][]byte // published names with their records
	lost bool
}

var _ meta.Store = (*Names)(nil)

// New returns a store, which renews its names until Close.
func New(o Options) *Names {
	n := &Names{options: o, own: make(map[string][]byte)}
	n.closing, n.stop = context.WithCancel(context.Background())
	n.running.Go(func() {
		ticker := time.NewTicker(max(o.Lease/renewals, time.Millisecond))
		defer ticker.Stop()
		for {
			select {
			case <-n.closing.Done():
				return
			case <-ticker.C:
				n.renew()
			}
		}
	})
	return n
}

// CheckName returns why a name cannot stand in a service, nil if it can.
func CheckName(name string) error {
	bad := strings.ContainsFunc(name, func(r rune) bool {
		return (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && (r < '0' || r > '9') && !strings.ContainsRune("._-", r)
	})
	if name == "" || len(name) > nameMax || bad {
		return errs.New(errs.InvalidArgument, "name", "%q cannot be the name of an engine: it has 1 to %d %s",
			errs.Printable(name, nameMax), nameMax, nameAllowed)
	}
	return nil
}

// keyOf returns the key under which a service keeps the engine of a name. Addresses, files and "" have none.
func keyOf(name string) (key string, is bool) {
	engine, _, _ := strings.Cut(name, "/")
	return prefix + engine, name != "" && !strings.Contains(engine, ":")
}

// Resolve returns where a name leads. An address, a file and "" lead where they say, without a question.
func (n *Names) Resolve(ctx context.Context, name string) (meta.Target, error) {
	engine, _, _ := strings.Cut(name, "/")
	key, is := keyOf(name)
	if !is {
		return meta.ParseTarget(name)
	}
	if err := CheckName(engine); err != nil {
		return meta.Target{}, err
	}
	ctx, cancel := context.WithTimeout(ctx, n.options.Limit)
	defer cancel()
	value, err := n.options.Service.Get(ctx, key)
	if err != nil {
		return meta.Target{}, unanswered(n.options.Service, "open", err)
	}
	if value == nil {
		return meta.Target{}, errs.New(errs.InvalidEntry, "open", "no engine is named %q in %v", engine,
			n.options.Service).WithHint("it has not started, or has ended: its name goes with it")
	}
	r, err := parse(value)
	if err != nil {
		return meta.Target{}, errs.New(errs.MetadataError, "open", "the entry of %q in %v is malformed: %v", engine,
			n.options.Service, err)
	}
	target, err := meta.ParseTarget(r.Address + name[len(engine):])
	target.ID = r.ID
	return target, err
}

func parse(value []byte) (record, error) {
	var r record
	if len(value) > recordMax {
		return r, errors.New("it is too long")
	}
	if err := json.Unmarshal(value, &r); err != nil {
		return r, err
	}
	if r.Format != format {
		return r, errors.New("it has another format")
	}
	return r, meta.CheckAddress(r.Address)
}

// unanswered is the error of a service that cannot be asked, or that refuses: a replica, or one without memory left.
func unanswered(s Service, op string, cause error) error {
	return errs.New(errs.MetadataError, op, "%v cannot be used: %v", s, cause).
		WithHint("look at metadata_type, metadata_servers, metadata_user and the files of metadata_*; a peer can be " +
			"opened by its address meanwhile")
}

// Publish makes a name lead to an engine, until Close. A name that leads to another engine is taken over if that one is
// proved to be gone, and InvalidArgument otherwise. Nothing is proved of a loopback address in another network.
func (n *Names) Publish(ctx context.Context, name, address, id string) error {
	if err := CheckName(name); err != nil {
		return err
	}
	r := record{Format: format, Address: address, ID: id}
	if meta.IsLoopback(address) {
		r.Network = n.options.Network
	}
	value, err := json.Marshal(r)
	if err != nil {
		return errs.Wrap(errs.Internal, "publish", err)
	}
	if err := n.put(ctx, name, value); err != nil {
		return err
	}
	n.mu.Lock()
	n.own[name] = value
	n.mu.Unlock()
	return nil
}

// put writes a record under a name, if no other engine has it.
func (n *Names) put(ctx context.Context, name string, value []byte) error {
	ctx, cancel := context.WithTimeout(ctx, n.options.Limit)
	defer cancel()
	s, key := n.options.Service, prefix+name
	var old []byte
	for {
		done, err := s.Swap(ctx, key, old, value, n.options.Lease)
		if err != nil {
			return unanswered(s, "publish", err)
		}
		if done {
			return nil
		}
		if old, err = s.Get(ctx, key); err != nil {
			return unanswered(s, "publish", err)
		}
		if old == nil || bytes.Equal(old, value) {
			continue
		}
		other, err := parse(old)
		if err != nil || n.canAsk(other) && n.options.Gone(ctx, other.Address, other.ID) {
			continue
		}
		return errs.New(errs.InvalidArgument, "publish", "%v has another engine named %q, at %s", s, name,
			other.Address).WithHint("choose another name; the entry of an engine that died ends after %v",
			n.options.Lease)
	}
}

// canAsk reports whether the address of a record leads to its engine from here. Loopback of another network does not:
// a refusal or an answer there comes from a stranger.
func (n *Names) canAsk(r record) bool {
	return !meta.IsLoopback(r.Address) || r.Network == n.options.Network
}

// renew makes the published names last, and publishes those again that the service has lost.
func (n *Names) renew() {
	n.mu.Lock()
	own := maps.Clone(n.own)
	n.mu.Unlock()
	var problem error
	for name, value := range own {
		if err := n.renewOne(name, value); err != nil {
			problem = err
		}
	}
	n.mu.Lock()
	changed := n.lost != (problem != nil)
	n.lost = problem != nil
	n.mu.Unlock()
	if changed && n.closing.Err() == nil {
		n.options.Changed(problem)
	}
}

func (n *Names) renewOne(name string, value []byte) error {
	ctx, cancel := context.WithTimeout(n.closing, n.options.Limit)
	defer cancel()
	held, err := n.options.Service.Renew(ctx, prefix+name, value, n.options.Lease)
	if err != nil {
		return unanswered(n.options.Service, "renew", err)
	}
	if held {
		return nil
	}
	return n.put(ctx, name, value)
}

// Close withdraws the published names, if the service answers within a second, and ends the connections.
func (n *Names) Close() error {
	n.stop()
	n.running.Wait()
	ctx, cancel := context.WithTimeout(context.Background(), closeLimit)
	defer cancel()
	for name, value := range n.own {
		_ = n.options.Service.Remove(ctx, prefix+name, value) // else its lease ends
	}
	return n.options.Service.Close()
}
