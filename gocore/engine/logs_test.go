package engine

import (
	"log/slog"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/event"
)

// People grep for the five lines of the failover seed, and upstream's tools do.
func TestTheLogHasTheLinesOfTheFailoverSeed(t *testing.T) {
	e := &Engine{}
	e.logs.level = slog.LevelInfo
	for _, c := range []struct {
		event event.Event
		level slog.Level
		want  string
	}{
		{event.Event{Kind: event.Failover, From: "rdma", To: "tcp", N: 1, M: 3}, slog.LevelWarn,
			"Transport failover: rdma -> tcp (attempt 1/3)"},
		{event.Event{Kind: event.FailoverExhausted, From: "tcp", N: 3, M: 3}, slog.LevelError,
			"Task failover limit reached (3), last transport=tcp"},
		{event.Event{Kind: event.FailoverNoRoute, From: "tcp", N: 1, M: 3}, slog.LevelError,
			"No more transports available after tcp failed"},
		{event.Event{Kind: event.RailRecovered, Local: "mlx5_0", Remote: "mlx5_1", Note: "cooldown expired"},
			slog.LevelInfo, "Rail recovered: local_nic=mlx5_0 remote_nic=mlx5_1 (cooldown expired)"},
		{event.Event{Kind: event.RailRecovered, Local: "a", Remote: "b", Note: "un-paused by successful transfer"},
			slog.LevelInfo, "Rail recovered: local_nic=a remote_nic=b (un-paused by successful transfer)"},
		{event.Event{Kind: event.RailPaused, Local: "a", Remote: "b", Took: time.Minute, Note: "3 errors"},
			slog.LevelWarn, "Rail paused: local_nic=a remote_nic=b (3 errors, for 1m0s)"},
		{event.Event{Kind: event.RailDown, Err: errs.New(errs.Lost, "test", "reset")}, slog.LevelWarn, "rail_down"},
	} {
		require.True(t, e.logs.event(&c.event), c.want)
		got := e.Logs(10)
		require.Len(t, got, 1)
		require.Equal(t, c.want, got[0].Message)
		require.Equal(t, c.level, got[0].Level, c.want)
	}
	require.False(t, e.logs.event(&event.Event{Kind: event.RailDown, Err: errs.New(errs.Lost, "test", "reset"),
		Note: "it delivered nothing, as those before"}), "Rail paused has said so")
}
