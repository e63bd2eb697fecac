package names

import (
	"context"
	"encoding/pem"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/grpc"
)

// server carries out each connection by itself, until the test ends.
func server(t *testing.T, each func(net.Conn)) (address string) {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	var running sync.WaitGroup
	running.Go(func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			running.Go(func() {
				defer conn.Close()
				each(conn)
			})
		}
	})
	t.Cleanup(func() { // behind those of the test, which close the connections
		require.NoError(t, listener.Close())
		running.Wait()
	})
	return listener.Addr().String()
}

// mute is a server that takes questions and never answers; asked hears of the first bytes of each connection.
func mute(t *testing.T) (address string, asked chan struct{}) {
	t.Helper()
	asked = make(chan struct{}, 64)
	return server(t, func(conn net.Conn) {
		for first := true; ; first = false {
			if _, err := conn.Read(make([]byte, 4096)); err != nil {
				return
			}
			if first {
				asked <- struct{}{}
			}
		}
	}), asked
}

// A question ends with its context, also where that is canceled long before its deadline.
func TestAQuestionEndsWithItsContext(t *testing.T) {
	for name, open := range map[string]func(address string) (Service, error){
		"http":  func(address string) (Service, error) { return NewHTTP("http://"+address, Access{}) },
		"redis": func(address string) (Service, error) { return NewRedis(address, Access{}) },
		"etcd":  func(address string) (Service, error) { return NewEtcd([]string{address}, Access{}, time.Hour) },
	} {
		for question, ask := range map[string]func(context.Context, Service) error{
			"get": func(ctx context.Context, s Service) error {
				_, err := s.Get(ctx, "k")
				return err
			},
			"swap": func(ctx context.Context, s Service) error {
				_, err := s.Swap(ctx, "k", nil, nil, lease)
				return err
			},
			"renew": func(ctx context.Context, s Service) error {
				_, err := s.Renew(ctx, "k", nil, lease)
				return err
			},
			"remove": func(ctx context.Context, s Service) error { return s.Remove(ctx, "k", nil) },
		} {
			if name == "etcd" && question == "renew" {
				continue // it knows no lease of ours, so it has nothing to ask
			}
			t.Run(name+" "+question, func(t *testing.T) {
				address, asked := mute(t)
				s, err := open(address)
				require.NoError(t, err)
				t.Cleanup(func() { require.NoError(t, s.Close()) })
				ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
				defer cancel()
				ended := make(chan error, 1)
				go func() { ended <- ask(ctx, s) }()
				<-asked
				cancel()
				select {
				case err := <-ended:
					require.ErrorContains(t, err, "context canceled")
				case <-time.After(20 * time.Second):
					t.Fatal("it goes on")
				}
			})
		}
	}
}

// A watch and its connection end with its context, also where the server has not answered yet.
func TestAWatchEndsWithItsContext(t *testing.T) {
	address, asked := mute(t)
	s, err := NewRedis(address, Access{})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
	defer cancel()
	hints := s.Watch(ctx, "k")
	<-asked
	cancel()
	guard := time.After(20 * time.Second)
	for open := true; open; {
		select {
		case _, open = <-hints:
		case <-guard:
			t.Fatal("it goes on")
		}
	}
}

// No limit of the client is shorter than the longest one of the settings.
func TestRedisHasTheLimitOfTheSettings(t *testing.T) {
	for _, address := range []string{"10.0.0.5:6379", "redis://10.0.0.5:6379/0", "rediss://10.0.0.5:6379"} {
		s, err := NewRedis(address, Access{})
		require.NoError(t, err)
		o := s.client.Options()
		for _, limit := range []time.Duration{o.DialTimeout, o.ReadTimeout, o.WriteTimeout, o.PoolTimeout} {
			require.GreaterOrEqual(t, limit, time.Minute, address)
		}
		require.NoError(t, s.Close())
	}
}

// The address of an HTTP server may have a query, as the tenant of a gateway.
func TestAPasswordStaysInTLS(t *testing.T) {
	inTheClear := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, password, _ := r.BasicAuth()
		assert.Empty(t, password)
		http.NotFound(w, r)
	}))
	defer inTheClear.Close()
	secure := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, inTheClear.URL+r.RequestURI, http.StatusFound)
	}))
	defer secure.Close()
	folder := t.TempDir()
	authority, password := filepath.Join(folder, "ca.pem"), filepath.Join(folder, "password")
	require.NoError(t, os.WriteFile(authority, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE",
		Bytes: secure.Certificate().Raw}), 0o600))
	require.NoError(t, os.WriteFile(password, []byte("word"), 0o600))
	s, err := NewHTTP(secure.URL, Access{CA: authority, User: "tent", Password: password})
	require.NoError(t, err)
	_, err = s.Get(t.Context(), "k")
	require.ErrorContains(t, err, "302 Found")
	require.NoError(t, s.Close())
}

func TestTheQueryOfTheAddressIsKept(t *testing.T) {
	var asked []url.Values
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked = append(asked, r.URL.Query())
		http.NotFound(w, r)
	}))
	t.Cleanup(server.Close)
	s, err := NewHTTP(server.URL+"/metadata?cluster=a&key=x", Access{})
	require.NoError(t, err)
	for _, key := range []string{"k", "l"} {
		_, err = s.Get(t.Context(), key)
		require.NoError(t, err)
	}
	require.Equal(t, []url.Values{{"cluster": {"a"}, "key": {"k"}}, {"cluster": {"a"}, "key": {"l"}}}, asked)
	require.NoError(t, s.Close())
}

// vanishingEtcd takes a transaction, never answers it, and cannot be reached any more.
type vanishingEtcd struct {
	*etcdServer
	listener net.Listener
}

func (v vanishingEtcd) Txn(ctx context.Context, _ *pb.TxnRequest) (*pb.TxnResponse, error) {
	_ = v.listener.Close()
	<-ctx.Done()
	return nil, ctx.Err()
}

// The client of etcd says of such a transaction that its time was over, and no more.
func TestAFailedTransactionHasItsCause(t *testing.T) {
	for name, ask := range map[string]func(context.Context, Service) error{
		"swap": func(ctx context.Context, s Service) error {
			_, err := s.Swap(ctx, "k", nil, []byte("v"), lease)
			return err
		},
		"remove": func(ctx context.Context, s Service) error { return s.Remove(ctx, "k", []byte("v")) },
	} {
		t.Run(name, func(t *testing.T) {
			listener, err := net.Listen("tcp", "127.0.0.1:0")
			require.NoError(t, err)
			e := &etcdServer{moved: make(chan struct{})}
			e.wipe()
			server := grpc.NewServer()
			pb.RegisterKVServer(server, vanishingEtcd{e, listener})
			pb.RegisterLeaseServer(server, e)
			go func() { _ = server.Serve(listener) }()
			t.Cleanup(server.Stop)
			s, err := NewEtcd([]string{listener.Addr().String()}, Access{}, time.Second)
			require.NoError(t, err)
			t.Cleanup(func() { require.NoError(t, s.Close()) })
			ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
			defer cancel()
			require.ErrorContains(t, ask(ctx, s), "connection refused")
		})
	}
}
