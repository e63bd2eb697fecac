package tcp

import (
	"encoding/hex"
	"fmt"
	"net/netip"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tent-engine/tent/gocore/transport"
	"github.com/tent-engine/tent/transports/kit"
)

// The offer of a version stays readable while it is spoken. A change of it that this test sees is another version of
// the protocol, which Info.Versions names.
func TestTheRecordedOfferIsStillUnderstood(t *testing.T) {
	for v, protected := range map[uint8]shield{2: {}, 3: {transport.Encrypt, suiteChaCha}} {
		want := offer{owner: transport.NumberedID(5), requests: 64, bytes: 1 << 20, machine: "machine",
			network: "network", shield: protected,
			addresses: []netip.AddrPort{netip.MustParseAddrPort("10.0.0.5:41233"),
				netip.MustParseAddrPort("[fd00::5]:41233")}}
		for i := range want.attachment {
			want.attachment[i] = byte(i)
		}
		for i := range want.secret {
			want.secret[i] = byte(0xff - i)
		}
		text, err := os.ReadFile(fmt.Sprintf("testdata/offer-v%d.hex", v))
		require.NoError(t, err)
		old, err := hex.DecodeString(strings.TrimSpace(string(text)))
		require.NoError(t, err)
		r := kit.NewReader(old)
		require.Equal(t, v, r.U8(), "the version")
		got, err := readOffer(r, v, r.ID())
		require.NoError(t, err)
		require.Equal(t, want, got)
		require.Equal(t, hex.EncodeToString(old), hex.EncodeToString(want.append(beginAnswer(v, want.owner), v)))
	}
}
