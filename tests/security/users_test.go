package security

import (
	"context"
	"errors"
	"io"
	"net/http"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/tent-engine/tent/gocore/engine"
	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/mem"
	"github.com/tent-engine/tent/gocore/transport"
	"github.com/tent-engine/tent/tests/forked"
)

const size = 1 << 16

// nobody is a user without any right on the host.
const nobody = 65534

// Intruder is a process of another user. Its method is called by the test.
type Intruder struct{}

// Scrape becomes nobody and asks for a page of the metrics.
func (Intruder) Scrape(url string, o *Outcome) error {
	if err := syscall.Setuid(nobody); err != nil {
		return err
	}
	answer, err := (&http.Client{Timeout: patience}).Get(url)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	o.Read = answer.StatusCode == http.StatusOK
	o.Bytes, err = io.ReadAll(answer.Body)
	return err
}

// Attempt is an intruder's plan, and Outcome its end.
type (
	Attempt struct {
		Address  string
		Settings map[string]any
	}
	Outcome struct {
		Code        errs.Code
		Cause       string
		Read, Wrote bool
		Bytes       []byte
	}
)

// Try becomes nobody, opens the engine at an address, reads its region "shared", and writes to it.
func (Intruder) Try(a Attempt, o *Outcome) error {
	if err := syscall.Setuid(nobody); err != nil { // of all threads
		return err
	}
	e, err := open(a.Settings)
	if err != nil {
		return err
	}
	defer func() { _ = e.Close(time.Second, true); _ = e.Forget() }()
	if err := o.reach(e, a.Address); err != nil {
		known := errs.From("intruder", err)
		o.Code, o.Cause = known.Code, known.Error()
	}
	return nil
}

func (o *Outcome) reach(e *engine.Engine, at string) error {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	b, err := unix.Mmap(-1, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
	if err != nil {
		return err
	}
	if _, err = e.Register(engine.Memory{Addr: mem.AddressOf(b), Size: size, Location: "cpu:0"}); err != nil {
		return err
	}
	peer, err := e.OpenSegment(ctx, at+"/shared")
	if err != nil {
		return err
	}
	if err = move(e, peer, transport.Read, b); err != nil {
		return err
	}
	o.Read, o.Bytes = true, append(o.Bytes, b...)
	copy(b, "OWNED!")
	if err = move(e, peer, transport.Write, b); err != nil {
		return err
	}
	o.Wrote = true
	return nil
}

// move carries out one request between own memory and the region that the segment was opened on.
func move(e *engine.Engine, to engine.SegmentID, op transport.Op, b []byte) error {
	id, err := e.Move(&engine.Request{Terms: engine.Terms{Op: op}, Source: mem.AddressOf(b), Length: size,
		Remote: engine.Remote{Segment: to}})
	if err != nil {
		return err
	}
	defer func() { _ = e.FreeBatch(id) }()
	if !e.Wait(id, patience).Terminal() {
		return errors.New("the transfer did not end")
	}
	sum, err := e.Summary(id)
	if err == nil && sum.Err != nil {
		err = sum.Err
	}
	return err
}

// refusals reads the counter of refusals by the control plane for a reason.
func refusals(e *engine.Engine, reason string) float64 {
	return e.Metrics()[`tent_refused_total{plane="control",reason="`+reason+`"}`]
}

// TestAnotherUserOfTheHost sends a process of user nobody, which itself believes everybody, to our engine.
func TestAnotherUserOfTheHost(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("only root can become another user")
	}
	for _, c := range []struct {
		name     string
		settings map[string]any
		admitted bool
	}{
		{"with the default settings", nil, false},
		{"when local_users names it", map[string]any{"security/local_users": []string{"65534"}}, true},
		{"when local_users names somebody else", map[string]any{"security/local_users": []string{"1"}}, false},
		{"when local_users is any", map[string]any{"security/local_users": []string{"any"}}, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			e := victim(t, c.settings)
			shared := memory(t, size)
			copy(shared, "public")
			_, err := e.Register(engine.Memory{Addr: mem.AddressOf(shared), Size: size, Name: "shared",
				Location: "cpu:0", Permission: mem.GlobalReadWrite})
			require.NoError(t, err)
			child, err := forked.Start()
			require.NoError(t, err)
			defer child.Kill()
			var o Outcome
			require.NoError(t, child.Call("Intruder.Try", Attempt{e.Address(), map[string]any{"insecure": true}}, &o))
			t.Log(o.Cause)
			require.Equal(t, c.admitted, o.Read)
			require.Equal(t, c.admitted, o.Wrote)
			if c.admitted {
				require.Equal(t, "public", string(o.Bytes[:6]))
				require.Equal(t, "OWNED!", string(shared[:6]))
				return
			}
			require.Equal(t, errs.PeerNotAdmitted, o.Code, o.Cause)
			require.Equal(t, "public", string(shared[:6]))
			require.Eventually(t, func() bool { return refusals(e, "identity") > 0 }, patience, time.Millisecond)
		})
	}
}

// TestAnotherUserReadsNoMetrics sends a process of user nobody to the place where an engine serves its metrics. Names
// and addresses of peers stand there.
func TestAnotherUserReadsNoMetrics(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("only root can become another user")
	}
	for name, each := range map[string]struct {
		settings map[string]any
		admitted bool
	}{
		"with the default settings":     {nil, false},
		"when local_users names it":     {map[string]any{"security/local_users": []string{"65534"}}, true},
		"where everybody may be a peer": {map[string]any{"insecure": true}, true},
	} {
		t.Run(name, func(t *testing.T) {
			e := victim(t, each.settings)
			at, err := e.ServeMetrics("127.0.0.1:0")
			require.NoError(t, err)
			for _, page := range []string{"/metrics", "/events", "/"} {
				child, err := forked.Start()
				require.NoError(t, err)
				var o Outcome
				err = child.Call("Intruder.Scrape", "http://"+at+page, &o)
				child.Kill()
				require.NoError(t, err)
				require.Equal(t, each.admitted, o.Read, page)
				require.Equal(t, !each.admitted, strings.Contains(string(o.Bytes), "security/local_users"), page)
			}
			require.Equal(t, !each.admitted, refusals(e, "identity") > 0)
			answer, err := http.Get("http://" + at + "/metrics") // our own user
			require.NoError(t, err)
			require.Equal(t, http.StatusOK, answer.StatusCode)
			require.NoError(t, answer.Body.Close())
		})
	}
}
