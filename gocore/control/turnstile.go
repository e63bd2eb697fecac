package control

import (
	"net"
	"os"
	"runtime"
	"slices"
	"sync"
	"time"
)

// turnstile lets few handshakes compute at once. The first word of one costs its sender nothing, and us a key and a
// signature. A handshake that waits for its peer's words holds no turn.
//
// The networks that wait have turns in rotation, so a flood delays its own network most. Within a network those that
// were answered come first, and then the newest: in a flood the first ones have given up or were closed by the time of
// their turn. So adaptive LIFO (Maurer, "Fail at Scale", ACM Queue 2015) serves one that still waits. A fair queue
// would serve nobody.
type turnstile struct {
	mu       sync.Mutex
	free     int
	networks map[string]*[2][]*turn // that wait, with their stacks: not answered, and answered
	rotation []string               // these networks, the next one first
}

// turn is the wait of one handshake.
type turn struct {
	guest    *guest
	answered bool
	come     chan struct{} // closed by leave
}

// newTurnstile gives handshakes half of the processors, and at least one.
func newTurnstile() *turnstile {
	return &turnstile{free: max(1, runtime.GOMAXPROCS(0)/2), networks: map[string]*[2][]*turn{}}
}

// enter waits for a turn, within a limit; every enter without an error is followed by leave. A guest that was closed
// meanwhile gets none.
func (s *turnstile) enter(g *guest, answered bool, limit time.Duration) error {
	w := s.queue(g, answered)
	if w == nil {
		return nil
	}
	timer := time.NewTimer(limit)
	defer timer.Stop()
	select {
	case <-w.come:
		return nil
	case <-g.left:
	case <-timer.C:
	}
	if !s.forget(w) {
		s.leave() // it came at this moment
	}
	select {
	case <-g.left:
		return net.ErrClosed
	default:
		return os.ErrDeadlineExceeded
	}
}

// queue takes a free turn and returns nil, or returns the wait for one.
func (s *turnstile) queue(g *guest, answered bool) *turn {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.free > 0 {
		s.free--
		return nil
	}
	w := &turn{guest: g, answered: answered, come: make(chan struct{})}
	stacks := s.networks[g.network]
	if stacks == nil {
		stacks = &[2][]*turn{}
		s.networks[g.network] = stacks
		s.rotation = append(s.rotation, g.network)
	}
	stack := &stacks[index(answered)]
	*stack = append(*stack, w)
	return w
}

func index(answered bool) int {
	if answered {
		return 1
	}
	return 0
}

// forget ends a wait, and reports whether it had not ended before.
func (s *turnstile) forget(w *turn) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	stacks := s.networks[w.guest.network]
	if stacks == nil {
		return false
	}
	stack := &stacks[index(w.answered)]
	i := slices.Index(*stack, w)
	if i < 0 {
		return false
	}
	*stack = slices.Delete(*stack, i, i+1)
	if len(stacks[0])+len(stacks[1]) == 0 {
		delete(s.networks, w.guest.network)
		s.rotation = slices.DeleteFunc(s.rotation, func(n string) bool { return n == w.guest.network })
	}
	return true
}

// leave passes a turn on.
func (s *turnstile) leave() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.rotation) == 0 {
		s.free++
		return
	}
	network := s.rotation[0]
	s.rotation = slices.Delete(s.rotation, 0, 1)
	stacks := s.networks[network]
	stack := &stacks[index(len(stacks[1]) > 0)]
	last := len(*stack) - 1
	close((*stack)[last].come)
	*stack = slices.Delete(*stack, last, last+1)
	if len(stacks[0])+len(stacks[1]) == 0 {
		delete(s.networks, network)
	} else {
		s.rotation = append(s.rotation, network)
	}
}

// shaking is a guest during its handshake, which takes turns: it holds one from each read's end to the next read.
type shaking struct {
	*guest
	limit    time.Duration
	holds    bool
	answered bool
	over     bool // set before anybody else reads: from then on it is the guest alone
}

// Read waits for the peer without a turn, and then for a turn.
func (s *shaking) Read(p []byte) (int, error) {
	if s.over {
		return s.guest.Read(p)
	}
	s.leave()
	n, err := s.guest.Read(p)
	if err != nil {
		return n, err
	}
	if err := s.of.turns.enter(s.guest, s.answered, s.limit); err != nil {
		return 0, err
	}
	s.holds = true
	return n, nil
}

// Write answers the peer.
func (s *shaking) Write(p []byte) (int, error) {
	if !s.over {
		s.answered = true
	}
	return s.guest.Write(p)
}

// leave ends the turn, if it has one.
func (s *shaking) leave() {
	if s.holds {
		s.holds = false
		s.of.turns.leave()
	}
}

// end makes it the guest alone.
func (s *shaking) end() {
	s.leave()
	s.over = true
}
