package names

import (
	"bytes"
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/meta"
)

// memory is a Service in the test's hands.
type memory struct {
	mu     sync.Mutex
	values map[string][]byte
	broken error
	moved  chan struct{} // closed at a change
}

func newMemory() *memory { return &memory{values: map[string][]byte{}, moved: make(chan struct{})} }

func (m *memory) Get(_ context.Context, key string) ([]byte, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.values[key], m.broken
}

func (m *memory) Swap(_ context.Context, key string, old, value []byte, _ time.Duration) (bool, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.broken != nil || !bytes.Equal(m.values[key], old) {
		return false, m.broken
	}
	m.values[key] = value
	close(m.moved)
	m.moved = make(chan struct{})
	return true, nil
}

func (m *memory) Renew(_ context.Context, key string, value []byte, _ time.Duration) (bool, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.broken == nil && bytes.Equal(m.values[key], value), m.broken
}

func (m *memory) Remove(_ context.Context, key string, value []byte) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if bytes.Equal(m.values[key], value) {
		delete(m.values, key)
	}
	return m.broken
}

func (m *memory) Watch(ctx context.Context, _ string) <-chan struct{} {
	return hinted(ctx, func(ctx context.Context, hint func()) {
		for {
			m.mu.Lock()
			moved := m.moved
			m.mu.Unlock()
			hint()
			select {
			case <-moved:
			case <-ctx.Done():
				return
			}
		}
	})
}

func (m *memory) Close() error   { return nil }
func (m *memory) String() string { return "the memory of the test" }

func (m *memory) breaks(cause error) {
	m.mu.Lock()
	m.broken = cause
	m.mu.Unlock()
}

// open returns a store that renews only when the test says so.
func open(t *testing.T, m *memory, gone bool) (n *Names, changes *[]error) {
	changes = &[]error{}
	n = New(Options{Service: m, Lease: time.Hour, Limit: time.Second, Network: "ours",
		Gone: func(context.Context, string, string) bool { return gone }, Changed: func(cause error) {
			*changes = append(*changes, cause)
		}})
	t.Cleanup(func() { require.NoError(t, n.Close()) })
	return n, changes
}

func TestANameLeadsToItsEngineAndRegion(t *testing.T) {
	m := newMemory()
	owner, _ := open(t, m, false)
	require.NoError(t, owner.Publish(t.Context(), "decode-0", "10.0.0.5:41233", "id-1"))
	other, _ := open(t, m, false)
	for name, want := range map[string]meta.Target{
		"decode-0":             {Address: "10.0.0.5:41233", ID: "id-1"},
		"decode-0/kv":          {Address: "10.0.0.5:41233", ID: "id-1", Region: "kv"},
		"decode-0/layer/3":     {Address: "10.0.0.5:41233", ID: "id-1", Region: "layer/3"},
		"10.0.0.6:1/kv":        {Address: "10.0.0.6:1", Region: "kv"},
		"[::1]:7":              {Address: "[::1]:7"},
		"file:///tmp/x":        {File: "/tmp/x"},
		"":                     {},
		"prefill.example:41/x": {Address: "prefill.example:41", Region: "x"},
	} {
		got, err := other.Resolve(t.Context(), name)
		require.NoError(t, err, name)
		require.Equal(t, want, got, name)
	}
	for name, code := range map[string]errs.Code{"nobody": errs.InvalidEntry, "a b": errs.InvalidArgument,
		"/kv": errs.InvalidArgument, strings.Repeat("n", 254): errs.InvalidArgument,
		"decode-0/": errs.InvalidArgument, "decode-0/" + strings.Repeat("r", 256): errs.InvalidArgument} {
		_, err := other.Resolve(t.Context(), name)
		require.Equal(t, code, errs.CodeOf(err), "%q: %v", name, err)
	}
}

// A name that is awaited is found when an engine publishes it, and when another one takes it over. The wait ends with
// its context, and with the store.
func TestAChangeOfANameIsAwaited(t *testing.T) {
	m := newMemory()
	asker, _ := open(t, m, false)
	target := func() meta.Target {
		found, err := asker.Resolve(t.Context(), "decode-0")
		require.NoError(t, err)
		return found
	}
	changed := func(from meta.Target) chan struct{} {
		done := make(chan struct{})
		go func() {
			asker.Changed(t.Context(), "decode-0", from)
			close(done)
		}()
		return done
	}
	ends := func(done chan struct{}) {
		t.Helper()
		select {
		case <-done:
		case <-time.After(10 * time.Second):
			t.Fatal("the change was not seen")
		}
	}
	waits := changed(meta.Target{})
	owner, _ := open(t, m, false)
	require.NoError(t, owner.Publish(t.Context(), "decode-0", "10.0.0.5:1", "id-1"))
	ends(waits)
	first := target()
	waits = changed(first)
	require.NoError(t, owner.Publish(t.Context(), "another", "10.0.0.5:1", "id-1"))
	heir, _ := open(t, m, true)
	require.NoError(t, heir.Publish(t.Context(), "decode-0", "10.0.0.6:1", "id-2"))
	ends(waits)
	require.NotEqual(t, first, target())
	ends(changed(first))

	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	asker.Changed(ctx, "decode-0", target())
	asker.Changed(ctx, "10.0.0.5:1", meta.Target{})
	waits = changed(target())
	other, _ := open(t, m, false)
	require.NoError(t, other.Close())
	asker.stop()
	ends(waits)
}

func TestEntriesOfOthersAreNotBelieved(t *testing.T) {
	m := newMemory()
	n, _ := open(t, m, false)
	for _, entry := range []string{"", "null", "{}", `{"format":2,"address":"10.0.0.5:1","id":"x"}`, "[", "\x00",
		`{"format":1,"address":"not an address","id":"x"}`, `{"format":1,"address":"` + strings.Repeat("1", 5000) + `"}`} {
		m.values[prefix+"x"] = []byte(entry)
		_, err := n.Resolve(t.Context(), "x")
		require.Equal(t, errs.MetadataError, errs.CodeOf(err), "%q: %v", entry, err)
	}
}

func TestANameBelongsToOneEngine(t *testing.T) {
	m := newMemory()
	first, _ := open(t, m, false)
	require.NoError(t, first.Publish(t.Context(), "kv", "10.0.0.5:1", "id-1"))
	alive, _ := open(t, m, false)
	err := alive.Publish(t.Context(), "kv", "10.0.0.6:1", "id-2")
	require.Equal(t, errs.InvalidArgument, errs.CodeOf(err), "%v", err)
	require.ErrorContains(t, err, "10.0.0.5:1")
	heir, _ := open(t, m, true)
	require.NoError(t, heir.Publish(t.Context(), "kv", "10.0.0.7:1", "id-3"))
	target, err := alive.Resolve(t.Context(), "kv")
	require.NoError(t, err)
	require.Equal(t, "10.0.0.7:1", target.Address)
}

// A loopback address leads to its engine in its own network alone. Elsewhere its host refuses for another engine, so
// nobody takes the name from there, also at a renewal, and each engine hears whether it has the name.
func TestNothingIsProvedByLoopbackOfAnotherNetwork(t *testing.T) {
	for address, takes := range map[string][2]bool{ // from the network of the owner, and from another one
		"127.0.0.1:1": {true, false}, "[::1]:1": {true, false}, "localhost:1": {true, false},
		"10.0.0.5:1": {true, true}} {
		for i, network := range []string{"ours", "theirs"} {
			m := newMemory()
			owner, changes := open(t, m, true)
			require.NoError(t, owner.Publish(t.Context(), "kv", address, "id-1"))
			heir, _ := open(t, m, true)
			heir.options.Network = network
			err := heir.Publish(t.Context(), "kv", "127.0.0.1:2", "id-2")
			if takes[i] {
				require.NoError(t, err, "%s from %s", address, network)
				continue
			}
			require.Equal(t, errs.InvalidArgument, errs.CodeOf(err), "%s from %s: %v", address, network, err)
			m.values[prefix+"kv"] = nil // the service loses it, and the other engine is faster
			require.NoError(t, heir.Publish(t.Context(), "kv", "127.0.0.1:2", "id-2"))
			owner.renew()
			require.Len(t, *changes, 1)
			require.ErrorContains(t, (*changes)[0], "another engine")
		}
	}
}

// A name that the service loses is published again, and its engine hears of each change once.
func TestALostNameComesBack(t *testing.T) {
	m := newMemory()
	n, changes := open(t, m, false)
	require.NoError(t, n.Publish(t.Context(), "kv", "10.0.0.5:1", "id-1"))
	n.renew()
	require.Empty(t, *changes)
	delete(m.values, prefix+"kv")
	n.renew()
	require.Empty(t, *changes, "it was published again at once")
	require.NotEmpty(t, m.values[prefix+"kv"])
	m.breaks(errors.New("no route to host"))
	n.renew()
	n.renew()
	require.Len(t, *changes, 1)
	require.Equal(t, errs.MetadataError, errs.CodeOf((*changes)[0]))
	require.ErrorContains(t, (*changes)[0], "no route to host")
	_, err := n.Resolve(t.Context(), "other")
	require.Equal(t, errs.MetadataError, errs.CodeOf(err))
	m.breaks(nil)
	n.renew()
	n.renew()
	require.Len(t, *changes, 2)
	require.NoError(t, (*changes)[1])
	m.values[prefix+"kv"] = []byte(`{"format":1,"address":"10.0.0.9:1","id":"id-9"}`)
	n.renew()
	require.Len(t, *changes, 3, "another engine has the name now")
	require.ErrorContains(t, (*changes)[2], "10.0.0.9:1")
}

func TestCloseWithdrawsOwnNamesAlone(t *testing.T) {
	m := newMemory()
	n, _ := open(t, m, false)
	require.NoError(t, n.Publish(t.Context(), "mine", "10.0.0.5:1", "id-1"))
	require.NoError(t, n.Publish(t.Context(), "taken", "10.0.0.5:1", "id-1"))
	other := []byte(`{"format":1,"address":"10.0.0.9:1","id":"id-9"}`)
	m.values[prefix+"taken"] = other
	require.NoError(t, n.Close())
	require.Equal(t, map[string][]byte{prefix + "taken": other}, m.values)
}
