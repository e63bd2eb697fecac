package control

import (
	"maps"
	"net"
	"os"
	"runtime"
	"slices"
	"sync"
	"time"

	"github.com/tent-engine/tent/gocore/control/intake"
)

// turnstile lets few handshakes compute at once. The first word of one costs its sender nothing, and us a key and a
// signature. A handshake that waits for its peer's words holds no turn.
//
// The networks that wait have turns in rotation, so a flood delays its own network most. Within a network those that
// were answered come first, and then the newest: in a flood the first ones have given up or were closed by the time of
// their turn. So adaptive LIFO (Maurer, "Fail at Scale", ACM Queue 2015) serves one that still waits. A fair queue
// would serve nobody.
//
// A network pays for the turns of its handshakes from a token bucket, and is given them back when a guest names itself
// by a call. One without a token waits for it: strangers take a twentieth of a processor, and invited peers that come
// by the thousand have theirs back. While it owes, its new guests are parked: nothing is done for them before their
// turn, so that they cost little more than their sockets.
type turnstile struct {
	room     *waitingRoom
	mu       sync.Mutex
	free     int
	networks map[string]*[2][]*turn // that wait, with their stacks: not answered, and answered
	rotation []string               // these networks, the next one first
	debts    map[string]*debt
	timer    *time.Timer // for the first network that has paid, while there is a free turn
	wakes    time.Time   // the timer; zero while no network is awaited
}

// debt is the time of turns that a network has not paid for, at a moment.
type debt struct {
	owed time.Duration
	at   time.Time
}

const (
	creditMost = 250 * time.Millisecond // that a network may owe and still has turns: some hundred handshakes
	payback    = 20                     // a network pays a second of turns in this number of seconds
	turnMost   = 10 * time.Millisecond  // of a turn, which computes for 2; in the rest its thread was not let run
	debtsMost  = 4096                   // networks with a debt; further ones have turns like the others
)

// turn is the wait of one handshake.
type turn struct {
	guest    *guest
	answered bool
	come     chan struct{} // closed by pass; nil: the guest is parked
}

// newTurnstile gives handshakes half of the processors, and at least one. So many parked guests may be on their way to
// gRPC.
func newTurnstile(parkedMost int) *turnstile {
	return &turnstile{room: newWaitingRoom(parkedMost), free: max(1, runtime.NumCPU()/2),
		networks: map[string]*[2][]*turn{}, debts: map[string]*debt{}}
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
	if s.free > 0 && s.due(g.network) == 0 {
		s.free--
		return nil
	}
	w := &turn{guest: g, answered: answered, come: make(chan struct{})}
	s.push(w)
	return w
}

// park has a guest wait for its first turn before anything else is done for it, if its network owes. It reports whether
// the guest waits; then it comes to the waiting room with its turn.
func (s *turnstile) park(g *guest) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.due(g.network) == 0 {
		return false
	}
	g.parked = &turn{guest: g}
	s.push(g.parked)
	return true
}

// replace gives the wait of the oldest guest of a host that is parked to a newer connection, as the newest wait of all.
// It returns the guest, nil for none; its old connection is closed.
func (s *turnstile) replace(network, host string, by *intake.Conn) *guest {
	s.mu.Lock()
	defer s.mu.Unlock()
	stacks := s.networks[network]
	if stacks == nil || len(stacks[0]) == 0 || stacks[0][0].come != nil || stacks[0][0].guest.host != host {
		return nil
	}
	stack, oldest := stacks[0], stacks[0][0]
	if conn, is := oldest.guest.Conn.(*intake.Conn); !is || !conn.Replace(by) {
		return nil
	}
	oldest.guest.came = time.Now()
	copy(stack, stack[1:])
	stack[len(stack)-1] = oldest
	return oldest.guest
}

// push lets a turn wait. The caller holds mu.
func (s *turnstile) push(w *turn) {
	g := w.guest
	stacks := s.networks[g.network]
	if stacks == nil {
		stacks = &[2][]*turn{}
		s.networks[g.network] = stacks
		s.rotation = append(s.rotation, g.network)
	}
	stack := &stacks[index(w.answered)]
	*stack = append(*stack, w)
	s.awaitPaid(g.network)
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

// abandon ends the wait of a parked guest, or passes the turn on that it has not used.
func (s *turnstile) abandon(g *guest) {
	if g.parked != nil && !s.forget(g.parked) && g.holds.Swap(false) {
		s.leave()
	}
}

// leave passes a turn on.
func (s *turnstile) leave() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.free++
	s.serve()
}

// serve gives free turns to networks that have paid. The caller holds mu.
func (s *turnstile) serve() {
	for s.free > 0 {
		at := slices.IndexFunc(s.rotation, func(network string) bool { return s.due(network) == 0 })
		if at < 0 {
			break
		}
		s.free--
		s.pass(at)
	}
	s.awaitPaid(s.rotation...)
}

// pass gives a turn to a network of the rotation. The caller holds mu.
func (s *turnstile) pass(at int) {
	network := s.rotation[at]
	s.rotation = slices.Delete(s.rotation, at, at+1)
	stacks := s.networks[network]
	stack := &stacks[index(len(stacks[1]) > 0)]
	last := len(*stack) - 1
	if w := (*stack)[last]; w.come != nil {
		close(w.come)
	} else if w.guest.holds.Store(true); !s.room.enter(w.guest) {
		go w.guest.of.drop(w.guest, "too many had waited for their handshake") // it leaves the turn
	}
	*stack = slices.Delete(*stack, last, last+1)
	if len(stacks[0])+len(stacks[1]) == 0 {
		delete(s.networks, network)
	} else {
		s.rotation = append(s.rotation, network)
	}
}

// awaitPaid wakes the first of some networks that has paid, while a turn is free, unless another one is awaited before
// that. So while one is free, the timer is set for the first network that waits. The caller holds mu.
func (s *turnstile) awaitPaid(networks ...string) {
	if s.free == 0 || len(networks) == 0 {
		return
	}
	first := s.due(networks[0])
	for _, network := range networks[1:] {
		first = min(first, s.due(network))
	}
	if s.wakes.IsZero() || time.Now().Add(first).Before(s.wakes) {
		s.wakeIn(first)
	}
}

// wakeIn sets the timer. The caller holds mu.
func (s *turnstile) wakeIn(pause time.Duration) {
	s.wakes = time.Now().Add(pause)
	if s.timer != nil {
		s.timer.Reset(pause)
		return
	}
	s.timer = time.AfterFunc(pause, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.wakes = time.Time{}
		s.serve()
	})
}

// due is the time until a network may have its next turn. The caller holds mu.
func (s *turnstile) due(network string) time.Duration {
	if d := s.debts[network]; d != nil {
		return max(0, s.settled(d)-creditMost) * payback
	}
	return 0
}

// settled returns the debt of this moment. The caller holds mu.
func (s *turnstile) settled(d *debt) time.Duration {
	now := time.Now()
	d.owed, d.at = max(0, d.owed-now.Sub(d.at)/payback), now
	return d.owed
}

// charge makes a network owe a turn's time, or gives it back, which is negative.
func (s *turnstile) charge(network string, took time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	d := s.debts[network]
	if d == nil {
		if took <= 0 || !s.roomForDebt() {
			return
		}
		d = &debt{at: time.Now()}
		s.debts[network] = d
	}
	d.owed = max(0, s.settled(d)+took)
	if took < 0 {
		s.serve()
	}
}

// roomForDebt forgets debts that were paid, where there are many. The caller holds mu.
func (s *turnstile) roomForDebt() bool {
	if len(s.debts) >= debtsMost {
		maps.DeleteFunc(s.debts, func(_ string, d *debt) bool { return s.settled(d) == 0 })
	}
	return len(s.debts) < debtsMost
}

// shaking is a guest during its handshake, which takes turns: it holds one from each read's end to the next read. A
// guest that was parked begins with one.
type shaking struct {
	*guest
	limit    time.Duration
	holds    bool
	since    time.Time // it holds its turn
	answered bool
	over     bool // set before anybody else reads: from then on it is the guest alone
}

// begin takes over the turn for which the guest was parked. It has waited once, so it goes before those that have not.
func (s *shaking) begin() {
	if s.guest.holds.Swap(false) {
		s.of.listens(s.guest)
		s.holds, s.since, s.answered = true, time.Now(), true
	}
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
	s.holds, s.since = true, time.Now()
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
		took := min(time.Since(s.since), turnMost)
		s.holds = false
		s.pays(took)
		s.of.turns.leave()
	}
}

// end makes it the guest alone.
func (s *shaking) end() {
	s.leave()
	s.over = true
}
