package engine

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/security"
	"github.com/tent-engine/tent/gocore/transport"
)

// A fence of several peers reaches each of them, also where the first one does not answer.
func TestAFenceOfSeveralPeersReachesEach(t *testing.T) {
	w := newWorkshop(t, "hand")
	h, r := w.hands[0], w.region("kv")
	for number := range uint64(3) {
		p := transport.Peer{ID: transport.NumberedID(number + 1), Identity: "dns:peer.svc"}
		w.visitors.note(p, security.Proof{}, time.Now())
	}
	h.locked(func() { h.held = r.key(0) })
	require.Equal(t, errs.Timeout, errs.CodeOf(w.FenceRegion(t.Context(), r.ID, "dns:*.svc")))
	h.locked(func() {
		require.Len(t, h.revokes, 3)
		h.held = 0
	})
}
