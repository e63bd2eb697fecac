package transporttest_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tent-engine/tent/gocore/transport"
	"github.com/tent-engine/tent/transports/sim"
	"github.com/tent-engine/tent/transports/transporttest"
)

type parker interface {
	transport.Transport
	transport.Parker
}

// sleeper is a mutant of a transport that waiters sleep on.
type sleeper struct {
	parker
	name string
}

// Poll finds nothing yet where one look is all that it gets, so that something is left for after Arm.
func (s *sleeper) Poll(budget int, classes transport.Classes) int {
	if budget == 1 {
		return 0
	}
	return s.parker.Poll(budget, classes)
}

func (s *sleeper) Arm() {
	if s.name != "hands nothing back" {
		s.parker.Arm()
	}
}

func (s *sleeper) Watch(list []transport.Watch, classes transport.Classes) []transport.Watch {
	if s.name == "has nothing to sleep on" {
		return list
	}
	return s.parker.Watch(list, classes)
}

func (s *sleeper) Woken(list []transport.Watch) {
	switch s.name {
	case "reads nothing when it is woken":
		list[0].Ready = 0
	case "sleeps for ever":
		return
	}
	s.parker.Woken(list)
}

// TestConformanceOfAQueue is the suite over the fake that the engine's tests sleep on.
func TestConformanceOfAQueue(t *testing.T) {
	transporttest.Run(t, func(*testing.T) transporttest.Harness {
		n := sim.NewInline(1)
		return transporttest.Harness{Open: func(t *testing.T, c transporttest.Config) transport.Transport {
			s := sim.Settings{Network: n, Rails: c.Rails, SlicesMax: 256, Vectors: true}
			tr, err := transporttest.Queued{Factory: sim.Factory{Settings: s}}.Open(t.Context(), nil, c.Host, c.Sink)
			require.NoError(t, err)
			return tr
		}}
	})
}
