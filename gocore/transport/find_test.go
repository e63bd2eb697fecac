package transport_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tent-engine/tent/gocore/transport"
)

// chooser has the methods of two optional interfaces, and serves one.
type chooser struct{ transport.Transport }

func (chooser) Flushes() uint64               { return 7 }
func (chooser) Explain(transport.Link) string { return "here" }
func (chooser) Lacks(optional any) bool {
	_, is := optional.(*transport.Flusher)
	return is
}

// around is a decorator that has a Flusher of its own.
type around struct{ transport.Transport }

func (a around) Inner() transport.Transport { return a.Transport }
func (around) Flushes() uint64              { return 8 }

func TestFindLeavesOutWhatATransportLacks(t *testing.T) {
	for name, tr := range map[string]transport.Transport{"itself": chooser{}, "decorated": around{chooser{}}} {
		_, is := transport.Find[transport.Flusher](tr)
		require.False(t, is, name)
		explainer, is := transport.Find[transport.Explainer](tr)
		require.True(t, is, name)
		require.Equal(t, "here", explainer.Explain(0), name)
		_, is = transport.Find[transport.Inliner](tr)
		require.False(t, is, name)
	}
}
