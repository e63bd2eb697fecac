package security

import (
	"crypto/x509"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// A certificate is believed as long as one of its chains holds, and a chain as long as all of its certificates do.
func TestTheEndIsThatOfTheLongestChain(t *testing.T) {
	at := func(years ...int) (chain []*x509.Certificate) {
		for _, year := range years {
			chain = append(chain, &x509.Certificate{NotAfter: time.Date(year, 1, 1, 0, 0, 0, 0, time.UTC)})
		}
		return chain
	}
	require.Equal(t, 2031, endOf([][]*x509.Certificate{at(2035, 2030, 2040), at(2035, 2031), at(2029)}).Year())
}
