package security

import (
	"bytes"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tent-engine/tent/gocore/engine"
	"github.com/tent-engine/tent/gocore/mem"
	"github.com/tent-engine/tent/gocore/transport"
)

// A caller that claims to be the engine itself gets nothing that the engine grants itself alone. That is neither memory
// that was registered for nobody, nor writing to memory that peers may only read. Everybody learns the
// name of the engine, so the claim costs nothing.
func TestClaimingToBeTheEngineGivesNoRights(t *testing.T) {
	const size = 4096
	e := victim(t)
	shared, private := memory(t, size), memory(t, size)
	copy(shared, bytes.Repeat([]byte("public "), size/7))
	copy(private, bytes.Repeat([]byte("secret "), size/7))
	_, err := e.Register(engine.Memory{Addr: mem.AddressOf(shared), Size: size, Name: "shared", Location: "cpu:0",
		Permission: mem.GlobalReadOnly})
	require.NoError(t, err)
	_, err = e.Register(engine.Memory{Addr: mem.AddressOf(private), Size: size, Location: "cpu:0"})
	require.NoError(t, err)
	for name, claims := range map[string]transport.Peer{
		"the engine itself": e.Self(),
		"a stranger": {Address: "127.0.0.1:1", Name: "stranger", MachineID: e.Self().MachineID,
			Network: e.Self().Network},
	} {
		t.Run(name, func(t *testing.T) {
			before := bytes.Clone(shared)
			own := memory(t, size)
			r := newRogue(t, claims, own)
			link, rail, refused := r.attach(e)
			if refused != nil {
				t.Log(refused) // the lane is not that of the engine that attached
				return
			}
			key, err := r.transport.Import(link, r.describe(e).Find("shared").Descriptors["tcp"])
			require.NoError(t, err)
			require.Nil(t, r.move(transport.Read, rail, key, own), "what is shared may be read")
			copy(own, bytes.Repeat([]byte("OWNED! "), size/7))
			require.NotNil(t, r.move(transport.Write, rail, key, own))
			require.Equal(t, before, shared, "memory that peers may only read was written")

			clear(own)
			next := key + 1<<32 + 1 // the region that was registered next, if keys can be guessed
			require.NotNil(t, r.move(transport.Read, rail, next, own))
			require.Equal(t, make([]byte, size), own, "memory that was registered for nobody was read")
		})
	}
}
