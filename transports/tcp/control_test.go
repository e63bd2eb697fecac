package tcp

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tent-engine/tent/gocore/transport"
	"github.com/tent-engine/tent/transports/kit"
)

// An offer has the first addresses of an owner with many, and a reader takes as many of one that names more.
func TestAnOfferOfManyAddressesIsRead(t *testing.T) {
	o := offer{owner: transport.NumberedID(1), requests: requestsMin, bytes: 1,
		shield: shield{transport.Encrypt, suiteAES}}
	empty := o.append(nil, version)
	const behind = 1 + 2 // the number of addresses, then the protection
	long := append(empty[:len(empty)-behind:len(empty)-behind], 255)
	for i := range 255 {
		a := netip.MustParseAddrPort(fmt.Sprintf("192.0.2.%d:1000", i+1))
		o.addresses = append(o.addresses, a)
		long = kit.AppendText(long, a.String())
	}
	long = append(long, empty[len(empty)-behind+1:]...)
	for _, b := range [][]byte{o.append(nil, version), long} {
		r := kit.NewReader(b)
		got, err := readOffer(r, version, o.owner)
		require.NoError(t, err)
		require.Zero(t, r.Left())
		require.Equal(t, o.addresses[:addressesMax], got.addresses)
		require.Equal(t, o.shield, got.shield)
	}
}
