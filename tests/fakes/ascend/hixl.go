//go:build cgo

package ascend

/*
#include <stdint.h>

static void options(void *f, char *into, uint64_t n) { ((void (*)(char *, uint64_t))f)(into, n); }
*/
import "C"

import (
	"bytes"
	"os/exec"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/tent-engine/tent/tests/fakes/compiled"
	"github.com/tent-engine/tent/tests/fakes/loaded"
)

// Folders below that of go.mod: shimFolder has the shim and the declarations of HIXL.
const (
	shimFolder = "transports/ascend/shim/"
	hixlFolder = "tests/fakes/ascend/hixl/"
)

// Shim compiles the shim as `make ascend-shim` does, and HIXL compiles the emulated library with the other string ABI.
// They skip a test by name where there is no g++: nothing else in the tree needs one.
func Shim(t testing.TB) string {
	return plus(t, "libtent_ascend.so", shimFolder+"tent_ascend.cc", "-D_GLIBCXX_USE_CXX11_ABI=1")
}

// HIXL compiles the emulated libmetadef.so and libcann_hixl.so, which are one library here. It has neither name: a test
// that loads it as one must not find it as the other.
func HIXL(t testing.TB) string {
	return plus(t, "libfake_hixl.so", hixlFolder+"hixl.cc", "-D_GLIBCXX_USE_CXX11_ABI=0", "-pthread")
}

// plus is a library of one source in C++.
func plus(t testing.TB, soname, source string, options ...string) string {
	if _, err := exec.LookPath("g++"); err != nil {
		t.Skip("no g++: the shim of HIXL and the emulated library are C++")
	}
	l := &compiled.Library{Soname: soname, Sources: []string{source},
		Headers: []string{shimFolder + "*.h", hixlFolder + "*.h"},
		Compiler: append([]string{"g++", "-std=c++17", "-O1", "-g", "-Wall", "-Wextra", "-Werror",
			"-fvisibility=hidden"}, options...)}
	return l.Build(t)
}

// LinkSettings of the emulated HIXL in a process, by the names of its environment variables without TENT_FAKEHIXL_.
//
//	LINKS     512: those of one engine
//	REQUESTS  those of one engine that have not ended
type LinkSettings map[string]string

// Environment is that of a child which is to load HIXL and its shim.
func (s LinkSettings) Environment(t testing.TB) []string {
	library := HIXL(t)
	list := []string{"TENT_LIBMETADEF=" + library, "TENT_LIBHIXL=" + library, "TENT_LIBASCEND=" + Shim(t)}
	for name, value := range s {
		list = append(list, "TENT_FAKEHIXL_"+name+"="+value)
	}
	return list
}

// RunLinked is Run with HIXL beside the runtime. The end of the test checks that nothing of it is left open, and that
// no call broke one of its rules.
func RunLinked(t *testing.T, s Settings, links LinkSettings, test func(t *testing.T, npu *Loaded, h *Linked)) {
	RunWith(t, s, nil, links.Environment(t), func(t *testing.T, npu *Loaded) {
		h, err := LoadHIXL()
		require.NoError(t, err)
		t.Cleanup(func() { h.Check(t) })
		test(t, npu, h)
	})
}

// Linked is the emulated HIXL in this process, a child of a test. Its methods may be called from any goroutine. Hold
// holds requests back before they move a byte.
type Linked struct{ loaded.Library }

// LinkStats are counters of HIXL in this process. The first four return to 0.
type LinkStats struct {
	Engines, Regions, Clients, Servers int64

	Requests                        int64 // that have not ended, or were forgotten with their link
	Connects, Transfers, Moved      int64
	Stale, Held, Foreign, Invisible int64 // rules that were broken, see Check
}

// LoadHIXL returns the library that TENT_LIBHIXL names.
func LoadHIXL() (*Linked, error) {
	library, err := loaded.Open("TENT_LIBHIXL", "fakehixl_")
	return &Linked{library}, err
}

// Stats returns the counters.
func (l *Linked) Stats() (s LinkStats) {
	l.Counters(unsafe.Pointer(&s))
	return s
}

// Check fails the test where something is open, or a rule was broken.
func (l *Linked) Check(t testing.TB) {
	s := l.Stats()
	require.Equal(t, [4]int64{}, [4]int64{s.Engines, s.Regions, s.Clients, s.Servers}, "left open: %+v", s)
	require.Zero(t, s.Stale, "requests that were asked about after their end")
	require.Zero(t, s.Held, "registrations that were to end while links were there")
	require.Zero(t, s.Foreign, "calls of threads that have not the context of their device")
	require.Zero(t, s.Invisible, "requests for memory that their link cannot see")
}

// Silence makes the fabric swallow everything: requests do not end, and nobody connects. Or it ends that.
func (l *Linked) Silence(on bool) { l.Switch("silence", on) }

// Inject makes the nth call of a function from now on return a code; 1 throws an exception. Of "transfer" it is the nth
// request, which fails late.
func (l *Linked) Inject(function string, nth int, code uint32) {
	l.Library.Inject(function, nth, int(code), false)
}

// Options returns those of the latest engine, "name=value;" each.
func (l *Linked) Options() string {
	text := make([]byte, 512)
	C.options(l.Find("options"), (*C.char)(unsafe.Pointer(&text[0])), C.uint64_t(len(text)))
	before, _, _ := bytes.Cut(text, []byte{0})
	return string(before)
}
