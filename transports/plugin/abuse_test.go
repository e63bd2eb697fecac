package plugin

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/mem"
	"github.com/tent-engine/tent/gocore/transport"
	"github.com/tent-engine/tent/transports/transporttest"
)

// abusive is testdata/abuse.c, compiled once, under a name that chooses its breach.
func abusive(t *testing.T, compiled, abuse string) Factory {
	t.Helper()
	path := placed(t, compiled, filepath.Join(filepath.Dir(compiled), "lib"+abuse+".so"))
	list := Load([]string{path}, []string{"tcp"})
	require.Len(t, list, 1)
	return list[0]
}

func TestTablesThatCannotBeUsedAreRefusedWithTheReason(t *testing.T) {
	compiled := built(t, asC, "testdata/abuse.c")
	for abuse, reason := range map[string]string{
		"no-table":        "it cannot serve version 1.2",
		"other-major":     "it is made for version 2.2 of the interface, and this is 1.2",
		"empty-table":     "its table has 0 bytes",
		"shorter":         "compile it with the header of this tent",
		"endless":         "its table has 4294967295 bytes",
		"no-submit":       "its table has no function submit",
		"no-close":        "its table has no function close",
		"unnamed":         `its name ""`,
		"long-name":       `its name "seventy-bytes`,
		"odd-name":        `its name "Caf`,
		"taken":           `another transport is called "tcp"`,
		"no-settings":     "it declares 1 settings",
		"many-settings":   "it declares 18446744073709551615 settings, and 256 are the limit",
		"odd-setting":     `setting "trusting": kind "matrix"`,
		"odd-default":     `setting "trusting": its default: 9 is out of range`,
		"own-setting":     `setting "enable": every transport has this key`,
		"twice-setting":   "it is declared twice",
		"not-here":        "no device is plugged in",
		"not-here-silent": "it cannot work here, and gives no reason",
	} {
		t.Run(abuse, func(t *testing.T) {
			f := abusive(t, compiled, abuse)
			err := f.Check()
			require.ErrorContains(t, err, reason)
			require.ErrorContains(t, err, "lib"+abuse+".so", "the file is named")
			require.NotContains(t, err.Error(), "\033")
			require.Equal(t, errs.ScopeTransport, errs.From("", err).Scope)
			if f.library.err != nil {
				require.Equal(t, abuse, f.Name(), "the name of the file stands for the one that it cannot give")
				_, err = f.Open(t.Context(), nil, nil, nil)
				require.ErrorContains(t, err, reason)
			}
		})
	}
}

// watcher is the sink and the host of an abusive transport: it waits for the end of a link, and keeps the log.
type watcher struct {
	transport.Sink
	transport.Host
	downs    chan *errs.Error
	progress chan struct{} // nil: Progress does not wait

	mu  sync.Mutex
	log bytes.Buffer
}

func (w *watcher) LinkDown(link transport.Link, cause *errs.Error) {
	w.Sink.LinkDown(link, cause)
	w.downs <- cause
}

func (w *watcher) Progress(rail transport.Rail) {
	if w.progress != nil {
		<-w.progress
	}
	w.Sink.Progress(rail)
}

func (w *watcher) Write(line []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.log.Write(line)
}

func (w *watcher) Log() *slog.Logger { return slog.New(slog.NewTextHandler(w, nil)) }

func (w *watcher) logged() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.log.String()
}

// abused opens two engines' worth of an abusive transport.
func abused(t *testing.T, f Factory, slow bool) (a, b *transporttest.Node, w *watcher) {
	t.Helper()
	world := transporttest.NewWorld(t, transporttest.Harness{Patience: 10 * time.Second,
		Open: func(t *testing.T, c transporttest.Config) transport.Transport {
			host := &watcher{Sink: c.Sink, Host: c.Host, downs: make(chan *errs.Error, 16)}
			if c.Name == "a" {
				if w = host; slow {
					w.progress = make(chan struct{})
				}
			}
			tr, err := f.Open(t.Context(), nil, host, host)
			require.NoError(t, err)
			return tr
		}})
	return world.Open("a"), world.Open("b"), w
}

func TestBreachesAreSurvivedNamedAndEndThePlugIn(t *testing.T) {
	compiled := built(t, asC, "testdata/abuse.c")
	for _, row := range []struct {
		abuse string
		says  string // the log; "" where no harm is done
		link  bool   // the link itself is enough; otherwise slices bring it out
	}{
		{"twice", "it completes slices that it does not have", false},
		{"stranger", "it completes slices that it does not have", false},
		{"wrong-bytes", "ended without an error and with 1 bytes", false},
		{"no-code", "an error without sense: code 0", false},
		{"odd-code", "an error without sense: code 9999", false},
		{"odd-scope", "scope 77", false},
		{"short-error", "it reports without sense", false},
		{"too-many", "it reports without sense", false},
		{"denies", "it reports without sense", false},
		{"rail-twice", "comes up in generation 1, and 1 was there before", true},
		{"no-structs", "it reports without sense", true},
		{"odd-links", "which never was", true},
		{"crowd", "it reports faster than anybody reads", true},
		{"odd-tokens", "that does not wait: token", true},
		{"calls", "has no function called", true},
		{"no-end-of-text", "", false},
		{"no-list", "", false},
		{"no-port", "", false},
		{"poll-lies", "", false},
		{"larger", "", false},
		{"older", "", false},
		{"half-newer", "", false},
		{"late", "", false},
	} {
		t.Run(row.abuse, func(t *testing.T) {
			f := abusive(t, compiled, row.abuse)
			require.NoError(t, f.Check())
			a, b, w := abused(t, f, row.abuse == "crowd")
			local, own := a.Register(t, 4096, mem.LocalReadWrite), b.Register(t, 4096, mem.GlobalReadWrite)
			var down *errs.Error
			if row.link {
				_, err := a.Transport.Attach(b.Peer)
				require.NoError(t, err)
				if w.progress != nil {
					close(w.progress)
				}
			} else {
				down = abuse(t, a.Connect(t, b), w, local, own)
			}
			if row.says == "" {
				require.Nil(t, down)
				require.Empty(t, w.logged())
				return
			}
			if down == nil {
				down = awaited(t, w)
			}
			require.Equal(t, errs.ScopeTransport, down.Scope)
			require.Equal(t, errs.SideLocal, down.Side)
			require.ErrorContains(t, down, "lib"+row.abuse+".so")
			require.ErrorContains(t, down, "leave it out of the setting plugins")
			require.Contains(t, w.logged(), row.says)
			require.Contains(t, w.logged(), "lib"+row.abuse+".so")
			_, err := a.Transport.Attach(b.Peer)
			require.Equal(t, errs.Internal, errs.CodeOf(err), "it takes nothing any more: %v", err)
		})
	}
}

// abuse moves slices until the link is down, at most 20. It returns the reason, nil if the link stays.
func abuse(t *testing.T, c *transporttest.Conn, w *watcher, local, own *transporttest.Operand) *errs.Error {
	t.Helper()
	remote, rail := c.Import(t, own), c.Rail(t)
	local.Fill(7, 0, local.Size)
	for range 20 {
		s := c.Slice(transport.Write, rail, local, 0, remote, 0, 4096)
		if c.Submit(s) == 0 {
			return awaited(t, w)
		}
		end := c.Wait(t, s)[0]
		require.NotContains(t, fmt.Sprint(end.Err), "\033")
		if end.Err == nil {
			require.NoError(t, remote.Check(7, 0, 0, 4096))
		}
	}
	select {
	case down := <-w.downs:
		return down
	default:
		return nil
	}
}

func awaited(t *testing.T, w *watcher) *errs.Error {
	t.Helper()
	select {
	case down := <-w.downs:
		return down
	case <-time.After(10 * time.Second):
		require.Fail(t, "the link of a plug-in that breaks the contract does not go down", w.logged())
		return nil
	}
}

func TestSlicesThatAPlugInKeepsEndWhenItCloses(t *testing.T) {
	a, b, w := abused(t, abusive(t, built(t, asC, "testdata/abuse.c"), "keeps"), false)
	c := a.Connect(t, b)
	local, remote := a.Register(t, 8192, mem.LocalReadWrite), c.Import(t, b.Register(t, 8192, mem.GlobalReadWrite))
	var list []*transport.Slice
	for i := range uint64(100) {
		list = append(list, c.Slice(transport.Read, c.Rail(t), local, i, remote, i, 64))
	}
	require.Equal(t, 100, c.Submit(list...))
	a.Close(t)
	for _, end := range c.Wait(t, list...) {
		require.Equal(t, errs.EngineClosed, end.Err.Code)
	}
	require.Contains(t, w.logged(), "it has closed without the ends of 100 slices")
}

// Slices before one that has ended were accepted, and end like any other.
func TestNoSliceIsLostWhereAPlugInDeniesThatItTookThem(t *testing.T) {
	a, b, w := abused(t, abusive(t, built(t, asC, "testdata/abuse.c"), "denies-some"), false)
	c := a.Connect(t, b)
	local, remote := a.Register(t, 256, mem.LocalReadWrite), c.Import(t, b.Register(t, 256, mem.GlobalReadWrite))
	var list []*transport.Slice
	for i := range uint64(4) {
		list = append(list, c.Slice(transport.Read, c.Rail(t), local, i*64, remote, i*64, 64))
	}
	require.Equal(t, 4, c.Submit(list...))
	for _, end := range c.Wait(t, list...) {
		require.Nil(t, end.Err)
	}
	a.Close(t)
	require.Contains(t, w.logged(), "it reports without sense")
}

func TestOpenSurvivesWhatAPlugInSaysOfItself(t *testing.T) {
	compiled := built(t, asC, "testdata/abuse.c")
	for abuse, reason := range map[string]string{
		"open-fails": "failed with 7777", "open-empty": "open gave no transport",
		"odd-feature": "it has features 0x4000000d", "odd-alignment": "its alignment is 3",
		"no-slices": "its slices have up to 0 bytes", "no-depth": "it takes 0 slices",
		"no-pairs": "it moves no kind of memory", "odd-versions": "it speaks versions 2 to 0",
		"no-sync": "it moves files, and lacks open_file, import_file or sync",
		"no-poll": "it copies in poll, and has no function poll"} {
		t.Run(abuse, func(t *testing.T) {
			w := &watcher{Host: self{}}
			_, err := abusive(t, compiled, abuse).Open(t.Context(), nil, w, w)
			require.ErrorContains(t, err, reason)
			require.ErrorContains(t, err, "lib"+abuse+".so")
		})
	}
	for abuse, reason := range map[string]string{"no-key": "register gave key 0", "long-descriptor": "1048576 bytes"} {
		t.Run(abuse, func(t *testing.T) {
			w := &watcher{Host: self{}}
			tr, err := abusive(t, compiled, abuse).Open(t.Context(), nil, w, w)
			require.NoError(t, err)
			buffer := make([]byte, 64)
			_, _, err = tr.Register(t.Context(), mem.Region{ID: 1, Addr: mem.AddressOf(buffer), Size: 64, Fd: -1})
			require.ErrorContains(t, err, reason)
			require.NoError(t, tr.Close(context.Background()))
		})
	}
}

// self is the host of a transport that is opened alone.
type self struct{ transport.Host }

func (self) Addresses() []netip.Addr { return nil }

func (self) Self() transport.Peer {
	return transport.Peer{Address: "self:1", ID: transport.NumberedID(1)}
}
