package tcp

import (
	"encoding/binary"
	"net"
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// linkNews is a message of the kernel about an interface.
func linkNews(index int, flags uint32) []byte {
	b := make([]byte, unix.SizeofNlMsghdr+unix.SizeofIfInfomsg)
	binary.NativeEndian.PutUint32(b, uint32(len(b)))
	binary.NativeEndian.PutUint16(b[4:], unix.RTM_NEWLINK)
	binary.NativeEndian.PutUint32(b[unix.SizeofNlMsghdr+4:], uint32(index))
	binary.NativeEndian.PutUint32(b[unix.SizeofNlMsghdr+8:], flags)
	return b
}

// The process had no descriptor for a look at its interfaces, and has one when the next news come.
func TestALookAtTheInterfacesThatFailedIsMadeUpFor(t *testing.T) {
	w := &newTestEndpoint(t, Settings{}).tr.(*Transport).watch
	require.Empty(t, w.learn(linkNews(1<<20, unix.IFF_UP), false), "news before any look")
	home := netip.MustParseAddr("127.0.0.1")
	w.ends[home], w.stale = &end{}, true
	require.Equal(t, []endChange{{address: home}}, w.learn(linkNews(1<<20, unix.IFF_UP), false))
	require.False(t, w.stale)
	lo, err := net.InterfaceByName("lo")
	require.NoError(t, err)
	changed := w.learn(linkNews(lo.Index, 0), false)
	require.Len(t, changed, 1)
	require.ErrorContains(t, changed[0].cause, "the interface of 127.0.0.1 is down")
}

// Rails look at their ends under the lock of the news. It is free when the goroutine that hears them has gone.
func TestAPanicAboutNewsOfInterfacesKeepsNoLock(t *testing.T) {
	w := &newTestEndpoint(t, Settings{}).tr.(*Transport).watch
	a := netip.MustParseAddr("192.0.2.1")
	w.ends[a] = nil
	require.Panics(t, func() { w.learn(nil, true) })
	require.True(t, w.mu.TryLock())
	delete(w.ends, a)
	w.mu.Unlock()
}
