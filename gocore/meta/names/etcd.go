package names

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"sync"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	etcd "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/tent-engine/tent/gocore/errs"
)

// Etcd is the service of a cluster of etcd. A value hangs on a lease of its own, so the cluster itself removes it.
type Etcd struct {
	client    *etcd.Client
	addresses []string
	tls       *tls.Config // nil without

	mu     sync.Mutex
	leases map[string]etcd.LeaseID // by key, of the values that we put
}

var _ Service = (*Etcd)(nil)

const network = "tcp" // of members

// answerMax bounds an answer, of which the client takes 2 GiB. Members take requests of 1.5 MiB.
const answerMax = 4 << 20

// explainLimit bounds the look for the cause of a failure.
const explainLimit = 200 * time.Millisecond

// NewEtcd returns the service of members at host:port, or at a URL with https for TLS by the system's authorities. A
// user is known to the members by a token, which is asked for here, for limit at most.
func NewEtcd(addresses []string, access Access, limit time.Duration) (*Etcd, error) {
	c := etcd.Config{Endpoints: addresses, Logger: zap.NewNop(), Username: access.User,
		DialKeepAliveTime: 10 * time.Second, DialKeepAliveTimeout: 3 * time.Second, DialTimeout: limit,
		MaxCallRecvMsgSize: answerMax}
	var err error
	if c.Password, err = access.password(); err != nil {
		return nil, err
	}
	if (c.Username == "") != (c.Password == "") {
		return nil, halfAccess("etcd")
	}
	secure, err := speaksTLS(addresses, access)
	if err != nil {
		return nil, err
	}
	if secure {
		if c.TLS, err = access.tls(); err != nil {
			return nil, err
		}
	}
	e := &Etcd{addresses: addresses, tls: c.TLS, leases: make(map[string]etcd.LeaseID)}
	if e.client, err = etcd.New(c); err != nil {
		return nil, unanswered(e, "metadata", e.explain(err))
	}
	return e, nil
}

// speaksTLS reports whether the connections to all members are TLS. The client would speak to a member at http:// in
// the clear, also with files of TLS beside it, and give it the password.
func speaksTLS(addresses []string, access Access) (bool, error) {
	secure := 0
	for _, address := range addresses {
		if err := noUser(address); err != nil {
			return false, err
		}
		switch {
		case strings.HasPrefix(address, "https://"):
			secure++
		case strings.HasPrefix(address, "http://") && access.hasTLS():
			return false, errs.New(errs.InvalidArgument, "metadata", "%s in metadata_servers is without TLS, and "+
				"files of TLS are named", errs.Printable(address, nameMax)).
				WithHint("make it https://, or leave out metadata_tls_*")
		}
	}
	if secure != 0 && secure != len(addresses) {
		return false, errs.New(errs.InvalidArgument, "metadata", "%d of %d members in metadata_servers begin with "+
			"https://", secure, len(addresses)).WithHint("write it before each of them, or before none")
	}
	return access.hasTLS() || secure > 0, nil
}

// explain returns the error of a question, with the cause that the client keeps for itself. The client waits for
// connections, and says no more than that its time was over.
func (e *Etcd) explain(err error) error {
	if !errors.Is(err, context.DeadlineExceeded) {
		return err
	}
	address := strings.TrimPrefix(strings.TrimPrefix(e.addresses[0], "https://"), "http://")
	asking, cancel := context.WithTimeout(context.Background(), explainLimit)
	defer cancel()
	dial := (&net.Dialer{}).DialContext
	if e.tls != nil {
		dial = (&tls.Dialer{Config: e.tls}).DialContext
	}
	connection, why := dial(asking, network, address)
	if why == nil {
		defer func() { _ = connection.Close() }() // it was a question
		_ = connection.SetReadDeadline(time.Now().Add(explainLimit))
		_, why = connection.Read(make([]byte, 1)) // an alert about our certificate comes behind the handshake
	}
	if why == nil || errors.Is(why, os.ErrDeadlineExceeded) {
		return err
	}
	return fmt.Errorf("%w: %v", err, why)
}

// Get implements Service.
func (e *Etcd) Get(ctx context.Context, key string) ([]byte, error) {
	answer, err := e.client.Get(ctx, key)
	if err != nil {
		return nil, e.explain(err)
	}
	if len(answer.Kvs) == 0 {
		return nil, nil
	}
	return answer.Kvs[0].Value, nil
}

// Swap implements Service.
func (e *Etcd) Swap(ctx context.Context, key string, old, value []byte, lease time.Duration) (bool, error) {
	granted, err := e.client.Grant(ctx, max(1, int64(lease/time.Second)))
	if err != nil {
		return false, e.explain(err)
	}
	was := etcd.Compare(etcd.CreateRevision(key), "=", 0)
	if old != nil {
		was = etcd.Compare(etcd.Value(key), "=", string(old))
	}
	answer, err := e.client.Txn(ctx).If(was).Then(etcd.OpPut(key, string(value), etcd.WithLease(granted.ID))).Commit()
	if err != nil || !answer.Succeeded {
		_, _ = e.client.Revoke(ctx, granted.ID) // else it ends by itself
		return false, e.explain(err)
	}
	e.mu.Lock()
	e.leases[key] = granted.ID
	e.mu.Unlock()
	return true, nil
}

// Renew implements Service.
func (e *Etcd) Renew(ctx context.Context, key string, value []byte, _ time.Duration) (bool, error) {
	e.mu.Lock()
	lease, is := e.leases[key]
	e.mu.Unlock()
	if !is {
		return false, nil
	}
	if _, err := e.client.KeepAliveOnce(ctx, lease); err != nil {
		if errors.Is(err, rpctypes.ErrLeaseNotFound) {
			return false, nil
		}
		return false, e.explain(err)
	}
	now, err := e.Get(ctx, key)
	return err == nil && bytes.Equal(now, value), err
}

// Remove implements Service.
func (e *Etcd) Remove(ctx context.Context, key string, value []byte) error {
	_, err := e.client.Txn(ctx).If(etcd.Compare(etcd.Value(key), "=", string(value))).Then(etcd.OpDelete(key)).Commit()
	return e.explain(err)
}

// Watch implements Service. A watch asks for changes behind the present revision, and the client begins it again where
// the connection broke; a member without a leader ends it.
func (e *Etcd) Watch(ctx context.Context, key string) <-chan struct{} {
	return hinted(ctx, func(ctx context.Context, hint func()) {
		for answer := range e.client.Watch(etcd.WithRequireLeader(ctx), key, etcd.WithCreatedNotify()) {
			if answer.Err() != nil {
				return
			}
			hint()
		}
	})
}

// Close implements Service.
func (e *Etcd) Close() error { return e.client.Close() }

// String implements Service.
func (e *Etcd) String() string { return "etcd at " + strings.Join(e.addresses, ", ") }
