package services

import (
	"crypto/tls"
	"crypto/x509"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"go.etcd.io/etcd/client/pkg/v3/transport"
	"go.etcd.io/etcd/server/v3/embed"
)

// A test starts this program again in a role: a service that it can stop and kill, or an engine.
var (
	role      = flag.String("role", "", "what this process is: etcd, http, engine; a test if empty")
	address   = flag.String("address", "", "where a service listens")
	folder    = flag.String("folder", "", "where etcd keeps its state")
	files     = flag.String("files", "", "folder with tls.crt, tls.key and ca.crt, for TLS with clients of that ca")
	word      = flag.String("word", "", "file with the password of the user tent")
	servers   = flag.String("servers", "", "where an engine finds its service")
	ofService = flag.String("service", "", "metadata_type of an engine")
)

func TestMain(m *testing.M) {
	flag.Parse()
	switch *role {
	case "etcd":
		fail(serveEtcd())
	case "http":
		fail(serveHTTP())
	case "engine":
		fail(serveEngine())
	default:
		os.Exit(m.Run())
	}
}

func fail(err error) {
	fmt.Fprintln(os.Stderr, err)
	os.Exit(1)
}

func serveEtcd() error {
	c := embed.NewConfig()
	c.Dir, c.LogLevel, c.UnsafeNoFsync = *folder, "error", true
	scheme := "http"
	if *files != "" {
		scheme = "https"
		c.ClientTLSInfo = transport.TLSInfo{CertFile: filepath.Join(*files, "tls.crt"),
			KeyFile: filepath.Join(*files, "tls.key"), TrustedCAFile: filepath.Join(*files, "ca.crt"),
			ClientCertAuth: true}
	}
	clients := []url.URL{{Scheme: scheme, Host: *address}}
	c.ListenClientUrls, c.AdvertiseClientUrls = clients, clients
	peers := []url.URL{{Scheme: "unix", Host: fmt.Sprintf("tent-%d:1", os.Getpid())}} // a cluster of one has none
	c.ListenPeerUrls, c.AdvertisePeerUrls = peers, []url.URL{{Scheme: "http", Host: "127.0.0.1:1"}}
	c.InitialCluster = c.InitialClusterFromName(c.Name)
	server, err := embed.StartEtcd(c)
	if err != nil {
		return err
	}
	<-server.Server.ReadyNotify()
	fmt.Println("ready")
	return <-server.Err()
}

// serveHTTP answers as Mooncake's metadata server does: values by ?key=, kept in memory.
func serveHTTP() error {
	listener, err := net.Listen("tcp", *address)
	if err != nil {
		return err
	}
	if *files != "" {
		if listener, err = secured(listener); err != nil {
			return err
		}
	}
	password, err := read(*word)
	if err != nil {
		return err
	}
	var mu sync.Mutex
	values := map[string][]byte{}
	fmt.Println("ready")
	return http.Serve(listener, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if _, given, _ := r.BasicAuth(); given != password {
			http.Error(w, "who are you", http.StatusUnauthorized)
			return
		}
		body, err := io.ReadAll(r.Body)
		if err != nil {
			return
		}
		mu.Lock()
		defer mu.Unlock()
		key := r.URL.Query().Get("key")
		value, is := values[key]
		switch r.Method {
		case http.MethodPut:
			values[key] = body
		case http.MethodDelete:
			delete(values, key)
		default:
			if !is {
				http.Error(w, "metadata not found", http.StatusNotFound)
				return
			}
			_, _ = w.Write(value)
		}
	}))
}

func secured(l net.Listener) (net.Listener, error) {
	own, err := tls.LoadX509KeyPair(filepath.Join(*files, "tls.crt"), filepath.Join(*files, "tls.key"))
	if err != nil {
		return nil, err
	}
	text, err := os.ReadFile(filepath.Join(*files, "ca.crt"))
	if err != nil {
		return nil, err
	}
	clients := x509.NewCertPool()
	clients.AppendCertsFromPEM(text)
	return tls.NewListener(l, &tls.Config{MinVersion: tls.VersionTLS12, Certificates: []tls.Certificate{own},
		ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: clients}), nil
}

func read(file string) (string, error) {
	if file == "" {
		return "", nil
	}
	text, err := os.ReadFile(file)
	return string(text), err
}

// serveEngine is an engine named "child" until it is killed.
func serveEngine() error {
	e, err := start(map[string]any{"metadata_type": *ofService, "metadata_servers": *servers, "metadata_lease": 2,
		"name": "child"})
	if err != nil {
		return err
	}
	fmt.Println("ready")
	_, err = io.Copy(io.Discard, os.Stdin) // a test that dies closes it
	_ = e.Close(0, true)
	return err
}
