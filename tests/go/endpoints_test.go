package tests

import (
	"io"
	"net"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tent-engine/tent/gocore/dispatch"
	"github.com/tent-engine/tent/gocore/engine"
	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/event"
	"github.com/tent-engine/tent/gocore/request"
	"github.com/tent-engine/tent/gocore/transport"
	"github.com/tent-engine/tent/tests/ports"
)

func fetch(t *testing.T, address, path string) string {
	t.Helper()
	defer http.DefaultClient.CloseIdleConnections()
	reply, err := http.Get("http://" + address + path)
	require.NoError(t, err)
	defer reply.Body.Close()
	require.Equal(t, 200, reply.StatusCode)
	text, err := io.ReadAll(reply.Body)
	require.NoError(t, err)
	return string(text)
}

// metricsOff returns the events that say that metrics are not served.
func metricsOff(t *testing.T, e *engine.Engine) (found []event.Event) {
	t.Helper()
	follower, err := e.Follow()
	require.NoError(t, err)
	defer e.Unfollow(follower)
	list, _, err := e.Events(follower, 1000)
	require.NoError(t, err)
	for _, ev := range list {
		if ev.Kind == event.MetricsOff {
			found = append(found, ev)
		}
	}
	return found
}

func TestMetricsAreServedUntilTheEngineCloses(t *testing.T) {
	e := openSim(false)(t, nil)
	address, err := e.ServeMetrics("0")
	require.NoError(t, err)
	require.True(t, strings.HasPrefix(address, "127.0.0.1:"), "a port alone is on loopback")
	require.Contains(t, fetch(t, address, "/metrics"), "tent_build_info{")
	e.StopMetrics(address)
	again, err := e.ServeMetrics(address)
	require.NoError(t, err, "its port is free again")
	require.Equal(t, address, again)
	e.Close(0, true)
	_, err = http.Get("http://" + address + "/metrics")
	require.Error(t, err)
	_, err = e.ServeMetrics("0")
	require.Equal(t, errs.EngineClosed, errs.CodeOf(err))
}

func TestTwoEnginesOnOnePortAreAnEvent(t *testing.T) {
	first := openSim(false)(t, nil)
	address, err := first.ServeMetrics("127.0.0.1:0")
	require.NoError(t, err)
	_, port, _ := strings.Cut(address, ":")
	for _, settings := range []map[string]any{{"metrics/listen": address}, {"metrics/listen": port},
		{"metrics/http_port": port}, {"metrics/http_host": "127.0.0.1", "metrics/http_port": port}} {
		second := openSim(false)(t, settings)
		off := metricsOff(t, second)
		require.Len(t, off, 1, "%v", settings)
		require.True(t, strings.HasSuffix(off[0].Note, port), "%v", settings)
		require.ErrorContains(t, off[0].Err, "in use")
	}
	require.Contains(t, fetch(t, address, "/events"), `"events":`, "the first one goes on")
	require.Empty(t, metricsOff(t, openSim(false)(t, map[string]any{"metrics/http_host": "0.0.0.0"})),
		"a host without a port serves nothing")
}

func TestPlacesOfMetricsAreBounded(t *testing.T) {
	e := openSim(false)(t, nil)
	var err error
	for range 100 {
		if _, err = e.ServeMetrics("0"); err != nil {
			break
		}
	}
	require.Equal(t, errs.TooManyRequests, errs.CodeOf(err))
}

// Metrics name peers and their addresses: serving them beyond this machine is a decision, as for every listener.
func TestMetricsBeyondLoopbackNeedAWordAboutSecurity(t *testing.T) {
	e := openSim(false)(t, nil)
	for _, address := range []string{"0.0.0.0:0", "[::]:0", ":0", "192.0.2.1:0"} {
		_, err := e.ServeMetrics(address)
		require.Equal(t, errs.InvalidArgument, errs.CodeOf(err), address)
		require.ErrorContains(t, err, "insecure", address)
	}
	configured := openSim(false)(t, map[string]any{"metrics/listen": "0.0.0.0:0"})
	require.Len(t, metricsOff(t, configured), 1, "an event, and no failed engine")
	open := openSim(false)(t, map[string]any{"insecure": true})
	address, err := open.ServeMetrics("0.0.0.0:0")
	require.NoError(t, err)
	_, port, err := net.SplitHostPort(address)
	require.NoError(t, err)
	require.Contains(t, fetch(t, "127.0.0.1:"+port, "/metrics"), "tent_build_info")
}

// A peer that ends and comes back at its address, with the same ports, is two peers while both are open. The page has
// the rails of the one that is there.
func TestMetricsAreServedWhenAPeerComesBackAtItsAddress(t *testing.T) {
	settings := map[string]any{"rpc_server_port": ports.Keep(t), "transports/tcp/port": ports.Keep(t)}
	e := openAll(t, map[string]any{"transports/shm/enable": false})
	source := memory(t, 4096)
	offer(t, e, source, "")
	for range 2 {
		peer := openAll(t, settings)
		offer(t, peer, memory(t, 4096), "kv")
		batch, err := e.Move(&engine.Request{Terms: request.Terms{Op: transport.Write}, Source: address(source),
			Length: uint64(len(source)), Remote: engine.Remote{Segment: segment(t, e, peer, "kv")}})
		require.NoError(t, err)
		require.Equal(t, dispatch.Completed, ended(t, e, batch).State)
		text, err := e.MetricsText()
		require.NoError(t, err)
		require.NotContains(t, text, "missing")
		require.Equal(t, 1, strings.Count(text, "\ntent_rail_state{"), text)
		require.Empty(t, peer.Close(patience, true))
	}
}
