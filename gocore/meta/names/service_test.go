package names

import (
	"context"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/stretchr/testify/require"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"google.golang.org/grpc"

	"github.com/tent-engine/tent/gocore/errs"
)

// world is a service with two clients, and a clock that the test moves.
type world struct {
	open    func() Service
	elapse  func(time.Duration)
	restart func() // the service goes away and comes back empty
}

func worlds() map[string]func(*testing.T) world {
	return map[string]func(*testing.T) world{"http": httpWorld, "redis": redisWorld, "etcd": etcdWorld}
}

const lease = 10 * time.Second

// Each service keeps a value for the length of its lease, swaps it only for the one that is expected, and removes
// nothing of others.
func TestServices(t *testing.T) {
	for name, make := range worlds() {
		t.Run(name, func(t *testing.T) {
			w, ctx := make(t), t.Context()
			a, b := w.open(), w.open()
			first, second := []byte(`{"n":1}`), []byte(`{"n":2}`)
			expect := func(want []byte) {
				t.Helper()
				for _, s := range []Service{a, b} {
					got, err := s.Get(ctx, "k")
					require.NoError(t, err)
					require.Equal(t, string(want), string(got))
				}
			}
			swap := func(s Service, old, value []byte, want bool) {
				t.Helper()
				done, err := s.Swap(ctx, "k", old, value, lease)
				require.NoError(t, err)
				require.Equal(t, want, done)
			}
			renew := func(s Service, value []byte, want bool) {
				t.Helper()
				held, err := s.Renew(ctx, "k", value, lease)
				require.NoError(t, err)
				require.Equal(t, want, held)
			}
			expect(nil)
			renew(a, first, false)
			watching, unwatch := context.WithCancel(ctx)
			hints := b.Watch(watching, "k")
			takeHint(t, hints)
			swap(a, nil, first, true)
			takeHint(t, hints)
			unwatch()
			require.Eventually(t, func() bool {
				_, open := <-hints
				return !open
			}, 10*time.Second, time.Millisecond, "the watch ends with its context")
			swap(b, nil, second, false)
			swap(b, second, second, false)
			expect(first)
			w.elapse(lease * 7 / 10)
			renew(a, first, true)
			w.elapse(lease * 7 / 10)
			expect(first)
			swap(b, first, second, true)
			renew(a, first, false)
			require.NoError(t, a.Remove(ctx, "k", first))
			expect(second)
			w.elapse(2 * lease)
			expect(nil)
			renew(b, second, false)
			swap(a, nil, first, true)
			require.NoError(t, a.Remove(ctx, "k", first))
			expect(nil)
			swap(a, nil, first, true)
			w.restart()
			renew(a, first, false)
			swap(a, nil, first, true)
			expect(first)
			require.Contains(t, a.String(), "at 127.0.0.1:")
			require.NoError(t, a.Close())
			require.NoError(t, b.Close())
		})
	}
}

func takeHint(t *testing.T, hints <-chan struct{}) {
	t.Helper()
	select {
	case _, open := <-hints:
		require.True(t, open)
	case <-time.After(10 * time.Second):
		t.Fatal("no hint")
	}
}

// A service that does not answer ends each question with its context.
func TestASilentServiceEndsWithTheQuestion(t *testing.T) {
	silent, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer silent.Close()
	address := silent.Addr().String()
	web, err := NewHTTP("http://"+address+"/metadata", Access{})
	require.NoError(t, err)
	cache, err := NewRedis(address, Access{})
	require.NoError(t, err)
	cluster, err := NewEtcd([]string{address}, Access{}, time.Second)
	require.NoError(t, err)
	for _, s := range []Service{web, cache, cluster} {
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		_, err := s.Get(ctx, "k")
		require.Error(t, err, "%v", s)
		require.Error(t, ctx.Err(), "%v ended before the limit: %v", s, err)
		cancel()
		require.NoError(t, s.Close())
	}
}

func TestAddressesOfServices(t *testing.T) {
	for _, bad := range []string{"", "10.0.0.5:8080", "ftp://h/x", "http://"} {
		_, err := NewHTTP(bad, Access{})
		require.ErrorContains(t, err, "is not the URL of a metadata server", bad)
	}
	_, err := NewRedis("redis://:secret@10.0.0.5:6379/0", Access{})
	require.ErrorContains(t, err, "without a password")
	require.NotContains(t, err.Error(), "secret")
	_, err = NewRedis("10.0.0.5:6379", Access{Password: "/nowhere"})
	require.ErrorContains(t, err, "metadata_password_file")
	_, err = NewEtcd([]string{"10.0.0.5:2379"}, Access{CA: "/nowhere"}, time.Second)
	require.ErrorContains(t, err, "metadata_tls_ca")
	_, err = NewEtcd([]string{"10.0.0.5:2379"}, Access{Certificate: "/nowhere"}, time.Second)
	require.ErrorContains(t, err, "metadata_tls_certificate")
}

// A setting that the service would not use is a mistake: a password would go in the clear, or to another user.
func TestAccessIsUsedOrRefused(t *testing.T) {
	word := filepath.Join(t.TempDir(), "password")
	require.NoError(t, os.WriteFile(word, []byte("word\n"), 0o600))
	etcd := func(addresses ...string) func(Access) error {
		return func(a Access) error { _, err := NewEtcd(addresses, a, time.Second); return err }
	}
	redis := func(a Access) error { _, err := NewRedis("10.0.0.5:6379", a); return err }
	named := func(a Access) error { _, err := NewRedis("redis://tent@10.0.0.5:6379/0", a); return err }
	web := func(a Access) error { _, err := NewHTTP("http://10.0.0.5:8080/metadata", a); return err }
	for name, c := range map[string]struct {
		open   func(Access) error
		access Access
		cause  string
	}{
		"etcd in the clear":     {etcd("http://10.0.0.5:2379"), Access{CA: "/ca"}, "files of TLS are named"},
		"one of etcd's members": {etcd("10.0.0.5:2379", "http://10.0.0.6:2379"), Access{Key: "/k"}, "10.0.0.6"},
		"some with TLS":         {etcd("https://10.0.0.5:2379", "10.0.0.6:2379"), Access{}, "1 of 2 members"},
		"others with TLS":       {etcd("http://10.0.0.5:2379", "https://10.0.0.6:2379"), Access{}, "1 of 2 members"},
		"etcd's user":           {etcd("10.0.0.5:2379"), Access{User: "u"}, "a user with a password"},
		"etcd's password":       {etcd("10.0.0.5:2379"), Access{Password: word}, "a user with a password"},
		"the user of Redis":     {redis, Access{User: "u"}, "a user with a password"},
		"a user in the URL":     {named, Access{}, "a user with a password"},
		"HTTP's password":       {web, Access{Password: word}, "a user with a password"},
	} {
		err := c.open(c.access)
		require.Equal(t, errs.InvalidArgument, errs.CodeOf(err), "%s: %v", name, err)
		require.ErrorContains(t, err, c.cause, name)
	}
}

// A PUT has succeeded when the server says so at the address that was asked. A wrong path is a 404, and a folder is
// redirected, as nginx does: a PUT then becomes a GET.
func TestAPutThatIsNotTakenIsAnError(t *testing.T) {
	for status, answer := range map[string]http.HandlerFunc{
		"404 Not Found": http.NotFound,
		"301 Moved Permanently": func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path == "/metadata" {
				http.Redirect(w, r, "/metadata/?"+r.URL.RawQuery, http.StatusMovedPermanently)
				return
			}
			http.NotFound(w, r)
		},
	} {
		server := httptest.NewServer(answer)
		s, err := NewHTTP(server.URL+"/metadata", Access{})
		require.NoError(t, err)
		value, err := s.Get(t.Context(), "k")
		require.NoError(t, err, "a redirected GET is followed")
		require.Nil(t, value)
		done, err := s.Swap(t.Context(), "k", nil, []byte(`{}`), time.Second)
		require.ErrorContains(t, err, status)
		require.False(t, done)
		if err := s.Remove(t.Context(), "k", nil); status == "404 Not Found" {
			require.NoError(t, err, "it is not there")
		} else {
			require.ErrorContains(t, err, status)
		}
		require.NoError(t, s.Close())
		server.Close()
	}
}

func TestThePasswordOfRedisComesFromAFile(t *testing.T) {
	server := miniredis.RunT(t)
	server.RequireAuth("word")
	file := filepath.Join(t.TempDir(), "password")
	require.NoError(t, os.WriteFile(file, []byte("word\n"), 0o600))
	good, err := NewRedis("redis://"+server.Addr()+"/0", Access{Password: file})
	require.NoError(t, err)
	_, err = good.Get(t.Context(), "k")
	require.NoError(t, err)
	require.NoError(t, good.Close())
	bad, err := NewRedis(server.Addr(), Access{})
	require.NoError(t, err)
	_, err = bad.Get(t.Context(), "k")
	require.ErrorContains(t, err, "NOAUTH")
	require.NoError(t, bad.Close())
}

// httpWorld is a server that answers as Mooncake's does.
func httpWorld(t *testing.T) world {
	var mu sync.Mutex
	values := map[string]string{}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		key := r.URL.Query().Get("key")
		switch r.Method {
		case http.MethodPut:
			body := make([]byte, r.ContentLength)
			_, _ = r.Body.Read(body)
			values[key] = string(body)
		case http.MethodDelete:
			delete(values, key)
		default:
			if _, is := values[key]; !is {
				http.Error(w, "metadata not found", http.StatusNotFound)
				return
			}
			_, _ = w.Write([]byte(values[key]))
		}
	}))
	t.Cleanup(server.Close)
	var later atomic.Int64
	open := func() Service {
		s, err := NewHTTP(server.URL+"/metadata", Access{})
		require.NoError(t, err)
		s.now = func() time.Time { return time.Now().Add(time.Duration(later.Load())) }
		return s
	}
	empty := func() {
		mu.Lock()
		clear(values)
		mu.Unlock()
	}
	return world{open, func(d time.Duration) { later.Add(int64(d)) }, empty}
}

func redisWorld(t *testing.T) world {
	server := miniredis.RunT(t)
	open := func() Service {
		s, err := NewRedis(server.Addr(), Access{})
		require.NoError(t, err)
		return s
	}
	return world{open, server.FastForward, func() {
		server.FlushAll()
		server.Close()
		require.NoError(t, server.Restart())
	}}
}

// etcdServer answers the calls that Etcd makes as a server of etcd does; tests/etcd runs a real one.
type etcdServer struct {
	pb.UnimplementedKVServer
	pb.UnimplementedLeaseServer
	pb.UnimplementedWatchServer
	mu     sync.Mutex
	now    time.Duration
	next   int64
	values map[string]*mvccpb.KeyValue
	leases map[int64]*etcdLease
	moved  chan struct{} // closed at a change
}

type etcdLease struct{ ttl, ends time.Duration }

func etcdWorld(t *testing.T) world {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	e := &etcdServer{moved: make(chan struct{})}
	e.wipe()
	server := grpc.NewServer()
	pb.RegisterKVServer(server, e)
	pb.RegisterLeaseServer(server, e)
	pb.RegisterWatchServer(server, e)
	go func() { _ = server.Serve(listener) }()
	t.Cleanup(server.Stop)
	open := func() Service {
		s, err := NewEtcd([]string{listener.Addr().String()}, Access{}, time.Second)
		require.NoError(t, err)
		return s
	}
	return world{open, e.elapse, e.wipe}
}

func (e *etcdServer) wipe() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.values, e.leases = map[string]*mvccpb.KeyValue{}, map[int64]*etcdLease{}
}

func (e *etcdServer) elapse(d time.Duration) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.now += d
	for id, l := range e.leases {
		if l.ends < e.now {
			e.endLocked(id)
		}
	}
}

func (e *etcdServer) endLocked(id int64) {
	delete(e.leases, id)
	for key, v := range e.values {
		if v.Lease == id {
			delete(e.values, key)
		}
	}
}

func (e *etcdServer) Range(_ context.Context, r *pb.RangeRequest) (*pb.RangeResponse, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	answer := &pb.RangeResponse{Header: &pb.ResponseHeader{}}
	if v := e.values[string(r.Key)]; v != nil {
		answer.Kvs, answer.Count = []*mvccpb.KeyValue{v}, 1
	}
	return answer, nil
}

func (e *etcdServer) Txn(_ context.Context, r *pb.TxnRequest) (*pb.TxnResponse, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	answer := &pb.TxnResponse{Header: &pb.ResponseHeader{}, Succeeded: true}
	for _, c := range r.Compare {
		v := e.values[string(c.Key)]
		switch c.Target {
		case pb.Compare_CREATE:
			answer.Succeeded = answer.Succeeded && v == nil
		case pb.Compare_VALUE:
			answer.Succeeded = answer.Succeeded && v != nil && string(v.Value) == string(c.GetValue())
		default:
			return nil, rpctypes.ErrGRPCNoSpace
		}
	}
	if !answer.Succeeded {
		return answer, nil
	}
	for _, op := range r.Success {
		if put := op.GetRequestPut(); put != nil {
			if e.leases[put.Lease] == nil {
				return nil, rpctypes.ErrGRPCLeaseNotFound
			}
			close(e.moved)
			e.moved = make(chan struct{})
			e.values[string(put.Key)] = &mvccpb.KeyValue{Key: put.Key, Value: put.Value, Lease: put.Lease}
		}
		if gone := op.GetRequestDeleteRange(); gone != nil {
			delete(e.values, string(gone.Key))
		}
	}
	return answer, nil
}

func (e *etcdServer) LeaseGrant(_ context.Context, r *pb.LeaseGrantRequest) (*pb.LeaseGrantResponse, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.next++
	ttl := time.Duration(r.TTL) * time.Second
	e.leases[e.next] = &etcdLease{ttl, e.now + ttl}
	return &pb.LeaseGrantResponse{Header: &pb.ResponseHeader{}, ID: e.next, TTL: r.TTL}, nil
}

func (e *etcdServer) LeaseRevoke(_ context.Context, r *pb.LeaseRevokeRequest) (*pb.LeaseRevokeResponse, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.endLocked(r.ID)
	return &pb.LeaseRevokeResponse{Header: &pb.ResponseHeader{}}, nil
}

func (e *etcdServer) LeaseKeepAlive(stream pb.Lease_LeaseKeepAliveServer) error {
	for {
		r, err := stream.Recv()
		if err != nil {
			return nil
		}
		e.mu.Lock()
		answer := &pb.LeaseKeepAliveResponse{Header: &pb.ResponseHeader{}, ID: r.ID} // TTL 0: there is no such lease
		if l := e.leases[r.ID]; l != nil {
			l.ends, answer.TTL = e.now+l.ttl, int64(l.ttl/time.Second)
		}
		e.mu.Unlock()
		if err := stream.Send(answer); err != nil {
			return nil
		}
	}
}

// Watch announces each change of any key, which is more than a watch may say.
func (e *etcdServer) Watch(stream pb.Watch_WatchServer) error {
	if _, err := stream.Recv(); err != nil {
		return nil
	}
	answer := &pb.WatchResponse{Header: &pb.ResponseHeader{Revision: 1}, Created: true}
	for {
		e.mu.Lock()
		moved := e.moved
		e.mu.Unlock()
		if err := stream.Send(answer); err != nil {
			return nil
		}
		select {
		case <-moved:
			answer = &pb.WatchResponse{Header: &pb.ResponseHeader{Revision: 2}, Events: []*mvccpb.Event{
				{Kv: &mvccpb.KeyValue{Key: []byte("k"), ModRevision: 2}}}}
		case <-stream.Context().Done():
			return nil
		}
	}
}

// A password in an address is refused, and the error shows none of it.
func TestAnAddressHasNoPassword(t *testing.T) {
	for name, open := range map[string]func(authority string) error{
		"http": func(a string) error { _, err := NewHTTP("http://"+a+":8080/metadata", Access{}); return err },
		"etcd": func(a string) error {
			_, err := NewEtcd([]string{"http://" + a + ":1"}, Access{}, time.Second)
			return err
		},
		"plain": func(a string) error { _, err := NewEtcd([]string{a + ":1"}, Access{}, time.Second); return err },
		"redis": func(a string) error { _, err := NewRedis(a+":6379", Access{}); return err },
		"url":   func(a string) error { _, err := NewRedis("redis://"+a+":6379/0", Access{}); return err },
	} {
		for _, password := range []string{"s3cret", "/s3cret", "7/s3cret", "#s3cret", "?s3cret", "%s3cret"} {
			err := open("tent:" + password + "@10.0.0.5")
			require.Equal(t, errs.InvalidArgument, errs.CodeOf(err), name)
			require.NotContains(t, err.Error(), "s3cret", name)
			require.ErrorContains(t, err, "metadata_password_file", name)
		}
	}
}
