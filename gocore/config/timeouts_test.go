package config

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestTimeLimitsRise(t *testing.T) {
	c, err := Load(birdsOnly)
	require.NoError(t, err)
	require.Equal(t, []time.Duration{5 * time.Millisecond, time.Second, 10 * time.Second, 30 * time.Second},
		[]time.Duration{c.Engine.RailSuspectAfter, c.Engine.RailCondemnAfter, c.Engine.AttemptTimeout,
			c.Engine.TransferStallTimeout})
	for text, want := range map[string]string{
		`{"attempt_timeout_ms": 30000}`: "attempt_timeout_ms is 30s (argument), which " +
			"is not less than transfer_stall_timeout, 30s (default)",
		`{"rail_condemn_ms": 20, "rail_suspect_ms": 20}`: "rail_suspect_ms is 20ms (argument), which " +
			"is not less than rail_condemn_ms, 20ms (argument)",
		`{"attempt_timeout_ms": 500, "rail_condemn_ms": 600}`:          "rail_condemn_ms is 600ms",
		`{"resend_rounds": 200, "resend_interval_ms": 1000}`:           "longer than transfer_stall_timeout, 30s",
		`{"transfer_stall_timeout": 1, "resend_interval_ms": 500}`:     "longer than transfer_stall_timeout, 1s",
		`{"transfer_stall_timeout": 0.01, "attempt_timeout_ms": 1000}`: "attempt_timeout_ms is 1s",
		`{"peer_outage_timeout": 31}`: "peer_outage_timeout is 31s (argument), which is more than " +
			"transfer_stall_timeout, 30s (default)",
	} {
		_, err := Load(birdsOnly, text)
		require.ErrorContains(t, err, want, text)
	}
}

func TestLimitsThatNobodySetGiveWay(t *testing.T) {
	c, err := Load(birdsOnly, `{"transfer_stall_timeout": 0.3}`)
	require.NoError(t, err)
	require.Equal(t, []time.Duration{5 * time.Millisecond, 33 * time.Millisecond, 100 * time.Millisecond},
		[]time.Duration{c.Engine.RailSuspectAfter, c.Engine.RailCondemnAfter, c.Engine.AttemptTimeout})
	require.Equal(t, 500*time.Millisecond, c.Engine.LinkWait, "a request that waits for a link is not being served")
	c, err = Load(birdsOnly, `{"peer_outage_timeout": 30}`)
	require.NoError(t, err)
	require.Equal(t, 30*time.Second, c.Engine.PeerOutageTimeout)
}

func TestRailsInheritTheSuspicionOfTheEngine(t *testing.T) {
	c, err := Load(birdsOnly, `{"rail_suspect_ms": 7}`)
	require.NoError(t, err)
	require.Equal(t, 7*time.Millisecond, c.RailOf("birds").SuspectAfter)
	c, err = Load(birdsOnly, `{"rail_suspect_ms": 7, "transports/birds/rail_suspect_ms": 2}`)
	require.NoError(t, err)
	require.Equal(t, 2*time.Millisecond, c.RailOf("birds").SuspectAfter)
	require.Equal(t, 7*time.Millisecond, c.Engine.RailSuspectAfter)
}

func TestOneFailureIsMoreThanTheRangeOfHealth(t *testing.T) {
	for text, want := range map[string]int{`{}`: 99, `{"transports/birds/rail_health_sensitivity": 250}`: 249,
		`{"transports/birds/rail_health_sensitivity": 250, "transports/birds/health_value_range": 0}`: 0} {
		c, err := Load(birdsOnly, text)
		require.NoError(t, err)
		require.Equal(t, want, c.RailOf("birds").HealthRange, text)
	}
	c, err := Load(birdsOnly, `{"transports/birds/rail_health_sensitivity": 250}`)
	require.NoError(t, err)
	require.Equal(t, "default (below transports/birds/rail_health_sensitivity)",
		entry(t, c, "transports/birds/health_value_range").Origin)
}
