package tcp

import (
	"encoding/hex"
	"net/netip"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tent-engine/tent/gocore/transport"
	"github.com/tent-engine/tent/transports/kit"
)

// The offer of a released version stays readable. A change of it that this test sees is another version of the
// protocol, which Info.Versions names.
func TestTheRecordedOfferIsStillUnderstood(t *testing.T) {
	want := offer{owner: transport.NumberedID(5), requests: 64, bytes: 1 << 20, machine: "machine", network: "network",
		addresses: []netip.AddrPort{netip.MustParseAddrPort("10.0.0.5:41233"),
			netip.MustParseAddrPort("[fd00::5]:41233")}}
	for i := range want.attachment {
		want.attachment[i] = byte(i)
	}
	for i := range want.secret {
		want.secret[i] = byte(0xff - i)
	}
	text, err := os.ReadFile("testdata/offer-v2.hex")
	require.NoError(t, err)
	old, err := hex.DecodeString(strings.TrimSpace(string(text)))
	require.NoError(t, err)
	r := kit.NewReader(old)
	require.EqualValues(t, 2, r.U8(), "the version")
	got, err := readOffer(r, r.ID())
	require.NoError(t, err)
	require.Equal(t, want, got)
	require.Equal(t, hex.EncodeToString(old), hex.EncodeToString(want.append(beginAnswer(want.owner))))
}
