package names

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
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

	mu     sync.Mutex
	leases map[string]etcd.LeaseID // by key, of the values that we put
}

var _ Service = (*Etcd)(nil)

// TLS names the files of a connection by TLS, as PEM. All are "" without it; a certificate of the client is optional.
type TLS struct{ CA, Certificate, Key string }

func (t TLS) config() (*tls.Config, error) {
	if t == (TLS{}) {
		return nil, nil
	}
	c := &tls.Config{MinVersion: tls.VersionTLS12}
	if t.CA != "" {
		text, err := os.ReadFile(t.CA)
		if err != nil {
			return nil, errs.Wrap(errs.InvalidArgument, "metadata_tls_ca", err)
		}
		if c.RootCAs = x509.NewCertPool(); !c.RootCAs.AppendCertsFromPEM(text) {
			return nil, errs.New(errs.InvalidArgument, "metadata_tls_ca", "%q holds no certificate", t.CA)
		}
	}
	if t.Certificate != "" || t.Key != "" {
		pair, err := tls.LoadX509KeyPair(t.Certificate, t.Key)
		if err != nil {
			return nil, errs.Wrap(errs.InvalidArgument, "metadata_tls_certificate", err)
		}
		c.Certificates = []tls.Certificate{pair}
	}
	return c, nil
}

// NewEtcd returns the service of members at host:port.
func NewEtcd(addresses []string, files TLS) (*Etcd, error) {
	secure, err := files.config()
	if err != nil {
		return nil, err
	}
	client, err := etcd.New(etcd.Config{Endpoints: addresses, TLS: secure, Logger: zap.NewNop(),
		DialKeepAliveTime: 10 * time.Second, DialKeepAliveTimeout: 3 * time.Second})
	if err != nil {
		return nil, errs.Wrap(errs.InvalidArgument, "metadata_servers", err)
	}
	return &Etcd{client: client, addresses: addresses, leases: make(map[string]etcd.LeaseID)}, nil
}

// Get implements Service.
func (e *Etcd) Get(ctx context.Context, key string) ([]byte, error) {
	answer, err := e.client.Get(ctx, key)
	if err != nil || len(answer.Kvs) == 0 {
		return nil, err
	}
	return answer.Kvs[0].Value, nil
}

// Swap implements Service.
func (e *Etcd) Swap(ctx context.Context, key string, old, value []byte, lease time.Duration) (bool, error) {
	granted, err := e.client.Grant(ctx, max(1, int64(lease/time.Second)))
	if err != nil {
		return false, err
	}
	was := etcd.Compare(etcd.CreateRevision(key), "=", 0)
	if old != nil {
		was = etcd.Compare(etcd.Value(key), "=", string(old))
	}
	answer, err := e.client.Txn(ctx).If(was).Then(etcd.OpPut(key, string(value), etcd.WithLease(granted.ID))).Commit()
	if err != nil || !answer.Succeeded {
		_, _ = e.client.Revoke(ctx, granted.ID) // else it ends by itself
		return false, err
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
		return false, err
	}
	now, err := e.Get(ctx, key)
	return err == nil && bytes.Equal(now, value), err
}

// Remove implements Service.
func (e *Etcd) Remove(ctx context.Context, key string, value []byte) error {
	_, err := e.client.Txn(ctx).If(etcd.Compare(etcd.Value(key), "=", string(value))).Then(etcd.OpDelete(key)).Commit()
	return err
}

// Close implements Service.
func (e *Etcd) Close() error { return e.client.Close() }

// String implements Service.
func (e *Etcd) String() string { return "etcd at " + strings.Join(e.addresses, ", ") }
