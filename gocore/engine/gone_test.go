package engine

import (
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tent-engine/tent/gocore/errs"
)

// The error of a peer that has gone says how that is known and when the peer was last heard. It has no hint about an
// address that has led there; only another incarnation keeps its hint.
func TestAGonePeersErrorSaysHowThatIsKnown(t *testing.T) {
	const unreachable = errs.PeerUnreachable
	because := func(code errs.Code, cause error) *errs.Error {
		e := errs.New(code, "control.call", "nobody listens at 10.0.0.1:7").WithHint("check the address")
		e.Err = cause
		return e
	}
	for _, c := range []struct {
		cause       *errs.Error
		code        errs.Code
		proof, hint string
	}{
		{because(unreachable, syscall.ECONNREFUSED), unreachable, "its host refuses connections", ""},
		{because(unreachable, syscall.ECONNRESET), unreachable, "its host resets connections", ""},
		{because(unreachable, &errs.Error{Code: errs.EngineClosed}), unreachable, "it has closed its engine", ""},
		{because(unreachable, notAdmitted), errs.PeerNotAdmitted, "it does not admit this engine any more", ""},
		{because(errs.PeerRestarted, nil), errs.PeerRestarted, "another incarnation answers at its address",
			"check the address"},
		{because(unreachable, nil), unreachable, "nobody listens at 10.0.0.1:7", ""},
	} {
		t.Run(c.proof, func(t *testing.T) {
			gone := goneError(c.cause, "last heard 300ms ago")
			require.Equal(t, c.code, gone.Code)
			require.Equal(t, "the peer has gone: "+c.proof+", last heard 300ms ago", gone.Cause)
			require.Equal(t, c.hint, gone.Hint)
			require.ErrorIs(t, gone, c.cause, "the sign itself stays behind it")
			require.Equal(t, "check the address", c.cause.Hint, "others may hold the cause")
		})
	}
}
