package qos

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tent-engine/tent/gocore/clock"
)

// host is the knowledge that processes share.
type host [Classes]clock.Time

func (h *host) Claim(class int, until, _ clock.Time)       { h[class] = max(h[class], until) }
func (h *host) Claimed(class int, _ clock.Time) clock.Time { return h[class] }
func (h *host) Carries(uint64, clock.Time)                 {}
func (h *host) Others(clock.Time) (bytes uint64)           { return 0 }

const ms = clock.Time(time.Millisecond)

func TestSlotsGoRoundAndAdmitAsTheSeedSays(t *testing.T) {
	s := Slots{Interval: 2 * time.Millisecond}
	for slot, classes := range [Classes]int{1, 2, 3} {
		for _, now := range []clock.Time{600*ms + clock.Time(slot)*2*ms, 600*ms + clock.Time(slot)*2*ms + 2*ms - 1} {
			require.Equal(t, slot, s.Current(now))
			for class := range Classes {
				ok, again := s.May(class, &host{}, now)
				require.Equal(t, class < classes, ok, "class %d in slot %d", class, slot)
				if !ok {
					require.Equal(t, 600*ms+clock.Time(class)*2*ms, again)
				}
			}
		}
	}
}

func TestASlotIsBorrowedWhenNobodyClaimsIt(t *testing.T) {
	s := Slots{Interval: 2 * time.Millisecond, Borrow: true}
	h := &host{}
	ok, _ := s.May(Low, h, 600*ms)
	require.True(t, ok, "nobody ever claimed it")
	h.Claim(High, 601*ms, 600*ms)
	ok, again := s.May(Low, h, 600*ms+1)
	require.False(t, ok)
	require.Equal(t, 601*ms, again)
	ok, _ = s.May(Low, h, again)
	require.True(t, ok)
	h.Claim(Medium, 607*ms, 605*ms)
	ok, _ = s.May(Low, h, 606*ms)
	require.False(t, ok, "MEDIUM has it, too")
	ok, _ = s.May(Medium, h, 606*ms)
	require.True(t, ok, "MEDIUM is not in its own way")
	h.Claim(Low, 608*ms, 606*ms)
	ok, _ = s.May(Low, h, 607*ms)
	require.True(t, ok, "nor is LOW")
}

func TestAClaimLastsAsLongAsItsWorkHas(t *testing.T) {
	s := Slots{Interval: 2 * time.Millisecond}
	const us = time.Microsecond
	for age, hold := range map[time.Duration]time.Duration{0: 250 * us, 249 * us: 250 * us, 1000 * us: 1000 * us,
		time.Second: 2000 * us} {
		require.Equal(t, hold, s.Hold(age))
	}
}

func TestNoSlotsWithoutNeighbours(t *testing.T) {
	for _, s := range []Slots{{}, {Interval: time.Millisecond}} {
		ok, _ := s.May(Low, nil, 600*ms)
		require.True(t, ok)
	}
}
