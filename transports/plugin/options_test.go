package plugin

import (
	"context"
	"net/netip"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tent-engine/tent/gocore/clock"
	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/mem"
	"github.com/tent-engine/tent/gocore/transport"
	"github.com/tent-engine/tent/transports/transporttest"
)

// alone opens a transport of an abusive plug-in that has no peer.
func alone(t *testing.T, compiled, abuse string) (transport.Transport, *watcher) {
	t.Helper()
	w := &watcher{Host: self{}}
	tr, err := abusive(t, compiled, abuse).Open(t.Context(), nil, w, w)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, tr.Close(context.Background())) })
	return tr, w
}

// Each optional interface of the contract has a function of the table, and a plug-in that breaks its promise is named.
func TestAnswersOfOptionalFunctionsAreChecked(t *testing.T) {
	compiled := built(t, asC, "testdata/abuse.c")
	open := func(spec transport.FileSpec) func(transport.Transport) error {
		return func(tr transport.Transport) error {
			_, err := must[transport.Filer](t, tr).OpenFile(t.Context(), spec)
			return err
		}
	}
	path := "/" + strings.Repeat("f", 3)
	allocate := func(tr transport.Transport) error {
		_, err := must[transport.Allocator](t, tr).Allocate(transport.Allocation{Size: 64, Location: "cpu:0"})
		return err
	}
	match := func(tr transport.Transport) error {
		_, err := must[transport.Matcher](t, tr).Match(1, 1, 1)
		return err
	}
	for _, row := range []struct {
		abuse, says string
		call        func(transport.Transport) error
	}{
		{"file-relative", `open_file gave "x/y"`, open(transport.FileSpec{Path: path})},
		{"file-endless", `which is not what was asked for`, open(transport.FileSpec{Path: path})},
		{"file-smaller", `with 1 bytes, which is not`, open(transport.FileSpec{Path: path, Size: 9, Create: true})},
		{"file-writes", `which is not what was asked for`, open(transport.FileSpec{Path: path, ReadOnly: true})},
		{"file-silent", "failed with 7777 and gave no reason", open(transport.FileSpec{Path: path})},
		{"file-near", "no absolute path", open(transport.FileSpec{Path: "file.bin"})},
		{"file-long", "no absolute path", open(transport.FileSpec{Path: "/" + strings.Repeat("x", 5000)})},
		{"gives-nothing", "allocate gave 64 bytes at 0x0", allocate},
		{"gives-little", "allocate gave 1 bytes", allocate},
		{"gives-beyond", "allocate gave 18446744073709551615 bytes", allocate},
		{"gives-silently", "failed with -1 and gave no reason", allocate},
		{"gives", "gave an error without sense", func(tr transport.Transport) error {
			a := must[transport.Allocator](t, tr)
			got, err := a.Allocate(transport.Allocation{Size: 64, Location: "cpu:0"})
			require.NoError(t, err)
			return a.Free(got)
		}},
		{"remaps", "failed with -5 and gave no reason", func(tr transport.Transport) error {
			return must[transport.Remapper](t, tr).Remap(t.Context(), 1, transport.Remapped{Length: 4096})
		}},
		{"match-many", "match ranks 65 rails, and 64 are the limit", match},
		{"match-silent", "failed with 1048576 and gave no reason", match},
		{"reach-silent", "the plug-in cannot reach it, and gives no reason", func(tr transport.Transport) error {
			r := must[transport.Reacher](t, tr)
			require.NoError(t, r.Reach(transport.Peer{}, []netip.AddrPort{netip.MustParseAddrPort("[::1]:7")}))
			return r.Reach(transport.Peer{}, []netip.AddrPort{netip.MustParseAddrPort("10.0.0.1:7")})
		}},
		{"reach-endless", strings.Repeat("x", 1000), func(tr transport.Transport) error {
			return must[transport.Reacher](t, tr).Reach(transport.Peer{},
				[]netip.AddrPort{netip.MustParseAddrPort("10.0.0.1:7")})
		}},
	} {
		t.Run(row.abuse, func(t *testing.T) {
			tr, _ := alone(t, compiled, row.abuse)
			require.ErrorContains(t, row.call(tr), row.says)
		})
	}
}

// must returns an optional interface of a transport that has it.
func must[T any](t *testing.T, tr transport.Transport) T {
	t.Helper()
	found, is := transport.Find[T](tr)
	require.True(t, is)
	return found
}

func TestRanksAndTextsOfAPlugInAreBounded(t *testing.T) {
	tr, w := alone(t, built(t, asC, "testdata/abuse.c"), "odd-ranks")
	match, err := must[transport.Matcher](t, tr).Match(1, 1, 1)
	require.NoError(t, err)
	require.Equal(t, slices.Repeat([]uint8{transport.Farthest}, 64), match.Near)
	require.Equal(t, match.Near, match.There)
	require.NotContains(t, match.Why, "\033")
	require.EqualValues(t, ^uint64(0), must[transport.Flusher](t, tr).Flushes())
	require.Empty(t, w.logged())
}

func TestAPlugInSurveysItsMachine(t *testing.T) {
	f := abusive(t, built(t, asC, "testdata/abuse.c"), "surveys")
	found := f.Survey()
	require.Equal(t, "plug-in "+f.library.path, found[0])
	require.Len(t, found, 2)
	require.True(t, strings.HasPrefix(found[1], "a card"))
	require.NotContains(t, found[1], "\033")
}

// refusals is a host that keeps the reasons of refusals.
type refusals struct {
	self
	seen chan transport.Refusal
}

func (r refusals) Refused(reason transport.Refusal, _ string, _ error) { r.seen <- reason }

// The drainer looks, and the transport closes, and the drainer goes to sleep: nobody would wake it. The same goes for a
// third breach.
func TestTheDrainerDoesNotSleepBehindTheEnd(t *testing.T) {
	tr, _ := alone(t, built(t, asC, "example/inside.c"), "inside")
	p := tr.(*port)
	require.True(t, p.maySleep(), "nothing waits")
	for _, mark := range []*atomic.Bool{&p.ending, &p.downs} {
		mark.Store(true)
		require.False(t, p.maySleep())
		mark.Store(false)
	}
}

func TestRefusalsWithoutSenseAreBreaches(t *testing.T) {
	w := &watcher{Host: refusals{seen: make(chan transport.Refusal, 9)}, downs: make(chan *errs.Error, 9)}
	tr, err := abusive(t, built(t, asC, "testdata/abuse.c"), "refuses").Open(t.Context(), nil, w, w)
	require.NoError(t, err)
	must[transport.Disconnecter](t, tr).Disconnect(transport.NumberedID(7))
	require.NoError(t, tr.Close(t.Context()))
	require.Contains(t, w.logged(), "it reports without sense")
	require.Empty(t, w.Host.(refusals).seen)
}

func TestSignsOfAPlugInAreHeard(t *testing.T) {
	compiled := built(t, asC, "testdata/abuse.c")
	for abuse, want := range map[string]transport.Signs{"held": {Held: true}, "unacked": {Unacked: true},
		"from-the-future": {}, "deaf": {}} {
		a, b, _ := abused(t, abusive(t, compiled, abuse), false)
		rail := a.Connect(t, b).Rail(t)
		before := clock.Now()
		signs := must[transport.Witness](t, a.Transport).Heard(rail)
		if abuse == "deaf" {
			require.Zero(t, signs)
			continue
		}
		require.GreaterOrEqual(t, signs.Heard, before, abuse)
		require.LessOrEqual(t, max(signs.Heard, signs.Moved, signs.Spoke), clock.Now(), abuse)
		require.Equal(t, want, transport.Signs{Held: signs.Held, Unacked: signs.Unacked}, abuse)
	}
}

// A function that a table of before does not have is not looked for behind it.
func TestTablesOfOlderVersionsHaveNoNewerFunctions(t *testing.T) {
	compiled := built(t, asC, "testdata/abuse.c")
	for abuse, want := range map[string][]bool{
		"older":      {true, true, false, false, false, false, false, false, false, false},
		"half-newer": {true, true, true, false, false, false, false, false, false, false},
		"newest":     {true, true, true, false, true, true, true, true, true, true},
		"file-all":   {true, true, true, true, true, true, true, true, true, true},
	} {
		tr, _ := alone(t, compiled, abuse)
		require.Equal(t, want, []bool{has[transport.Notifier](tr), has[transport.Witness](tr),
			has[transport.Inliner](tr), has[transport.Filer](tr), has[transport.Allocator](tr),
			has[transport.Remapper](tr), has[transport.Matcher](tr), has[transport.Disconnecter](tr),
			has[transport.Reacher](tr), has[transport.Flusher](tr)}, abuse)
		require.True(t, has[transport.Poller](tr) && has[transport.Prober](tr) && has[transport.EpochReader](tr))
	}
}

func has[T any](tr transport.Transport) bool {
	_, is := transport.Find[T](tr)
	return is
}

func TestASliceThatACallCarriesOutHasNoCompletion(t *testing.T) {
	compiled := built(t, asC, "testdata/abuse.c")
	for abuse, carried := range map[string]bool{"carry-completes": true, "carry-denies": false} {
		t.Run(abuse, func(t *testing.T) {
			a, b, w := abused(t, abusive(t, compiled, abuse), false)
			c := a.Connect(t, b)
			local := a.Register(t, 4096, mem.LocalReadWrite)
			remote := c.Import(t, b.Register(t, 4096, mem.GlobalReadWrite))
			local.Fill(7, 0, local.Size)
			s := c.Slice(transport.Write, c.Rail(t), local, 0, remote, 0, 4096)
			require.Equal(t, carried, must[transport.Inliner](t, a.Transport).Inline([]*transport.Slice{s}))
			require.NoError(t, remote.Check(7, 0, 0, 4096))
			if !carried {
				require.Nil(t, c.One(t, s), "it goes the usual way")
				require.Empty(t, w.logged())
				return
			}
			require.ErrorContains(t, awaited(t, w), "it completes slices that it does not have")
		})
	}
}

func TestCallsAtOnceHaveSlicesOfTheirOwn(t *testing.T) {
	a, b, _ := abused(t, abusive(t, built(t, asC, "testdata/abuse.c"), "carry-meets"), false)
	c := a.Connect(t, b)
	local := a.Register(t, 8192, mem.LocalReadWrite)
	remote := c.Import(t, b.Register(t, 8192, mem.GlobalReadWrite))
	local.Fill(7, 0, local.Size)
	rail, inliner, carried := c.Rail(t), must[transport.Inliner](t, a.Transport), make(chan bool, 2)
	for i := range uint64(2) {
		s := c.Slice(transport.Write, rail, local, i*4096, remote, i*4096, 4096)
		go func() { carried <- inliner.Inline([]*transport.Slice{s}) }()
	}
	for range 2 {
		require.True(t, <-carried)
	}
	require.NoError(t, remote.Check(7, 0, 0, 8192))
}

// onFiles opens a plug-in of files with one link.
func onFiles(t *testing.T, compiled, abuse string) (filer transport.Filer, tr transport.Transport, at transport.Link) {
	t.Helper()
	f := abusive(t, compiled, abuse)
	world := transporttest.NewWorld(t, transporttest.Harness{Patience: 10 * time.Second,
		Open: func(t *testing.T, c transporttest.Config) transport.Transport {
			// its log may tell of breaches
			host := &watcher{Sink: c.Sink, Host: c.Host, downs: make(chan *errs.Error, 16)}
			tr, err := f.Open(t.Context(), nil, host, host)
			require.NoError(t, err)
			return tr
		}})
	a, b := world.Open("a"), world.Open("b")
	link, err := a.Transport.Attach(b.Peer)
	require.NoError(t, err)
	return must[transport.Filer](t, a.Transport), a.Transport, link
}

func TestFilesOfAPlugInAreImportedAndSyncedOnce(t *testing.T) {
	compiled := built(t, asC, "testdata/abuse.c")
	card := transport.FileCard{Path: "/f", Size: 9}
	_, tr, link := onFiles(t, compiled, "file-no-key")
	_, err := tr.Import(link, card.Encode())
	require.ErrorContains(t, err, "import gave key 0")
	_, err = tr.Import(link, []byte("no card"))
	require.Equal(t, errs.InvalidArgument, errs.CodeOf(err))
	long := transport.FileCard{Path: "/" + strings.Repeat("x", 4095)}
	_, err = tr.Import(link, long.Encode())
	require.Equal(t, errs.InvalidArgument, errs.CodeOf(err))

	filer, tr, link := onFiles(t, compiled, "syncs")
	key, err := tr.Import(link, card.Encode())
	require.NoError(t, err)
	ends := make(chan *errs.Error, 9)
	filer.Sync(link, key, func(err *errs.Error) { ends <- err })
	require.Nil(t, <-ends)
	filer.Sync(link+1, key, func(err *errs.Error) { ends <- err })
	require.NotNil(t, <-ends, "a link that is not there")
	require.NoError(t, tr.Close(t.Context()))
	filer.Sync(link, key, func(err *errs.Error) { ends <- err })
	require.NotNil(t, <-ends, "closed")
	require.Empty(t, ends, "a second end of a token is a breach, and ends nothing")
}
