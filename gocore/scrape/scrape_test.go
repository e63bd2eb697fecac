package scrape

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/tent-engine/tent/gocore/errs"
)

// rig is a server over a source that counts its calls.
type rig struct {
	*Server
	t     *testing.T
	calls atomic.Int64
	text  string
	http  http.Client // one that has a connection for each of its callers, and no more: the server bounds their number
}

const callers = 8

func newRig(t *testing.T) *rig {
	goleak.VerifyNone(t) // of the test before
	r := &rig{t: t, text: "tent_batches 0\n"}
	r.http.Transport = &http.Transport{MaxIdleConnsPerHost: callers, MaxConnsPerHost: callers}
	s, err := Listen("127.0.0.1:0", Source{
		Metrics: func() (string, error) { r.calls.Add(1); return r.text, nil },
		Events: func(after uint64, most int) (any, uint64, uint64) {
			require.LessOrEqual(t, most, 256)
			return []uint64{after, after + 1}, after + 2, 3
		},
		Now: func() int64 { return 42 },
	})
	require.NoError(t, err)
	r.Server = s
	t.Cleanup(func() {
		s.Close()
		r.http.CloseIdleConnections()
		http.DefaultClient.CloseIdleConnections()
		goleak.VerifyNone(t)
	})
	return r
}

func (r *rig) get(path string) (int, string) {
	r.t.Helper()
	reply, err := r.http.Get("http://" + r.Address() + path)
	require.NoError(r.t, err)
	defer reply.Body.Close()
	body, err := io.ReadAll(reply.Body)
	require.NoError(r.t, err)
	return reply.StatusCode, string(body)
}

func TestPathsAnswerAndOthersDoNot(t *testing.T) {
	r := newRig(t)
	status, text := r.get("/metrics")
	require.Equal(t, 200, status)
	require.Equal(t, r.text, text)
	status, text = r.get("/events?after=7")
	require.Equal(t, 200, status)
	var events map[string]any
	require.NoError(t, json.Unmarshal([]byte(text), &events))
	require.Equal(t, map[string]any{"now_ns": 42.0, "next": 9.0, "lost": 3.0, "events": []any{7.0, 8.0}}, events)
	for path, want := range map[string]int{"/": 200, "/metrics/x": 404, "/debug/pprof/": 404, "/events?after=-1": 400} {
		status, _ := r.get(path)
		require.Equal(t, want, status, path)
	}
	reply, err := http.Post("http://"+r.Address()+"/metrics", "text/plain", strings.NewReader("x"))
	require.NoError(t, err)
	require.NoError(t, reply.Body.Close())
	require.Equal(t, http.StatusMethodNotAllowed, reply.StatusCode)
}

// A flood asks for the same text: the engine makes at most one each freshFor.
func TestAFloodCostsFewSnapshots(t *testing.T) {
	r := newRig(t)
	began := time.Now()
	var all sync.WaitGroup
	for range callers {
		all.Go(func() {
			for range 50 {
				status, _ := r.get("/metrics")
				assert.Equal(t, 200, status)
			}
		})
	}
	all.Wait()
	require.LessOrEqual(t, r.calls.Load(), int64(time.Since(began)/freshFor)+1)
}

// Connections that say nothing hold places for a while only, and there are at most connectionsMax.
func TestStalledCallersAreBoundedAndCutOff(t *testing.T) {
	r := newRig(t)
	var stalled []net.Conn
	for range connectionsMax {
		c, err := net.Dial("tcp", r.Address())
		require.NoError(t, err)
		defer c.Close()
		_, err = fmt.Fprintf(c, "GET /metrics HTTP/1.1\r\nHost: x\r\nX-Slow: ")
		require.NoError(t, err)
		stalled = append(stalled, c)
	}
	refused, err := net.Dial("tcp", r.Address())
	require.NoError(t, err)
	defer refused.Close()
	_ = refused.SetReadDeadline(time.Now().Add(20 * time.Second))
	_, err = refused.Read(make([]byte, 1))
	require.ErrorIs(t, err, io.EOF, "one more is closed at once")
	for _, c := range stalled {
		_ = c.SetReadDeadline(time.Now().Add(20 * time.Second))
		_, err := io.Copy(io.Discard, c)
		require.NoError(t, err, "its head did not end in time: cut off")
	}
	require.Eventually(t, func() bool {
		reply, err := http.Get("http://" + r.Address() + "/metrics")
		if err != nil {
			return false // a place is given back a moment after its connection is closed
		}
		return reply.Body.Close() == nil && reply.StatusCode == 200
	}, 20*time.Second, time.Millisecond)
}

// Connections that Admit refuses take no places of the others, whether they ask or are silent. One that asks hears why,
// and is closed.
func TestRefusedConnectionsKeepNobodyOut(t *testing.T) {
	foreign := errors.New("another user")
	var refused atomic.Int64
	s, err := Listen("127.0.0.1:0", Source{Metrics: func() (string, error) { return "m 1\n", nil },
		Admit: func(c net.Conn) error {
			if host, _, _ := net.SplitHostPort(c.RemoteAddr().String()); host == "127.0.0.9" {
				return foreign
			}
			return nil
		},
		Refused: func(_ net.Conn, cause error) {
			if cause == foreign {
				refused.Add(1)
			}
		}})
	require.NoError(t, err)
	defer s.Close()
	list := make([]net.Conn, 2*connectionsMax)
	for i := range list {
		list[i], err = (&net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 0, 9)}}).Dial("tcp", s.Address())
		require.NoError(t, err)
		defer list[i].Close()
	}
	for range 3 {
		reply, err := http.Get("http://" + s.Address() + "/metrics")
		require.NoError(t, err)
		require.Equal(t, http.StatusOK, reply.StatusCode)
		require.NoError(t, reply.Body.Close())
		http.DefaultClient.CloseIdleConnections()
	}
	_, err = io.WriteString(list[0], "GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n")
	require.NoError(t, err)
	all, err := io.ReadAll(list[0])
	require.NoError(t, err)
	require.Contains(t, string(all), "403 Forbidden")
	require.Contains(t, string(all), notAdmitted)
	require.EqualValues(t, 1, refused.Load())
}

func TestAHugeHeadIsRefused(t *testing.T) {
	r := newRig(t)
	c, err := net.Dial("tcp", r.Address())
	require.NoError(t, err)
	defer c.Close()
	_, _ = fmt.Fprintf(c, "GET /metrics HTTP/1.1\r\nHost: x\r\nX: %s\r\n\r\n", strings.Repeat("y", 1<<20))
	_ = c.SetReadDeadline(time.Now().Add(20 * time.Second))
	line, err := bufio.NewReader(c).ReadString('\n')
	if err == nil { // else the connection was reset first
		require.Contains(t, line, "431")
	}
	require.Zero(t, r.calls.Load())
}

// A reader that does not take its answer keeps Close no longer than its limit, and the source is left alone then.
func TestCloseWaitsForNoReader(t *testing.T) {
	r := newRig(t)
	r.text = strings.Repeat("#", 64<<20) // more than the sockets hold
	c, err := net.Dial("tcp", r.Address())
	require.NoError(t, err)
	defer c.Close()
	_, err = fmt.Fprintf(c, "GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n")
	require.NoError(t, err)
	_, err = io.ReadFull(c, make([]byte, 16))
	require.NoError(t, err, "the answer has begun")
	r.Close()
	calls := r.calls.Load()
	_, err = http.Get("http://" + r.Address() + "/metrics")
	require.Error(t, err)
	require.Equal(t, calls, r.calls.Load())
	r.Close() // again: nothing
}

func TestAPlaceThatIsTakenIsAnError(t *testing.T) {
	r := newRig(t)
	_, err := Listen(r.Address(), Source{})
	require.Equal(t, errs.RpcServiceError, errs.CodeOf(err))
	require.ErrorContains(t, err, "another port")
}

// A panic of the source costs its request alone, as net/http has it. The server answers others, and ends.
func TestAPanicOfTheSourceHoldsNobodyUp(t *testing.T) {
	for path, asked := range map[string]string{"/metrics": "/events", "/events": "/metrics"} {
		s, err := Listen("127.0.0.1:0", Source{
			Metrics: func() (string, error) {
				if path == "/metrics" {
					panic("metrics")
				}
				return "", nil
			},
			Events: func(uint64, int) (any, uint64, uint64) {
				if path == "/events" {
					panic("events")
				}
				return nil, 0, 0
			},
			Now: func() int64 { return 0 },
		})
		require.NoError(t, err)
		client := http.Client{Timeout: 10 * time.Second}
		_, err = client.Get("http://" + s.Address() + path)
		require.Error(t, err)
		reply, err := client.Get("http://" + s.Address() + asked)
		require.NoError(t, err, "behind a panic of %s", path)
		require.Equal(t, http.StatusOK, reply.StatusCode)
		require.NoError(t, reply.Body.Close())
		s.Close()
		client.CloseIdleConnections()
	}
}
