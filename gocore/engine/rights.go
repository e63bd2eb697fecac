package engine

import (
	"cmp"
	"encoding/binary"
	"slices"
	"sort"
	"sync"

	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/mem"
	"github.com/tent-engine/tent/gocore/security"
)

// A region is given to all peers that are admitted, or to those of some identities: its rule. The engine describes a
// region to the peers that its rule admits, and to no others. Transports check it where they know the peer of a slice:
// tcp does, for each. RDMA and shared memory rely on keys and names that only a description has.

// rule is a list of identities. Regions with equal lists share one.
type rule struct {
	*security.Names
	number uint32
	given  mem.Peers // as transports take it

	// Guarded by rules.mu.
	regions int  // that have it and a number
	listed  bool // it is in the list
}

// rights name a set of peers that see the same regions: the numbers of the rules that admit them, in order.
type rights string

const numberBytes = 4 // of a rule in rights

// rulesMax bounds the different lists of an engine's regions.
const rulesMax = 4096

// rules are the lists that regions have, and as many older ones as there is room for. A program that shares memory with
// one engine after the other has ever new lists. A number is given out once: rights of peers are kept by numbers.
type rules struct {
	mu     sync.RWMutex
	byText map[string]*rule
	list   []*rule // in the order of their numbers; replaced as a whole: rightsOf reads it without the lock
	made   uint32  // rules so far: the number of the next one
	came   uint64  // rules that have entered the list so far
}

// of returns the rule of memory that is to be registered, nil for none. The error is InvalidArgument, or
// TooManyRequests where regions have too many different ones.
func (s *rules) of(e *Engine, m Memory) (*rule, error) {
	switch {
	case m.Peers == nil:
		return nil, nil
	case m.Permission == mem.LocalReadWrite:
		return nil, errs.New(errs.InvalidArgument, "register", "peers are named, and the permission lets none in").
			WithHint("give the region a name, or a permission")
	}
	names, err := security.ParseNames("peers", m.Peers)
	if err != nil {
		return nil, err
	}
	if e.credentials.Mode() == security.Insecure && !names.IDsAlone() {
		return nil, errs.New(errs.InvalidArgument, "register",
			"peers are named, and insecure=true knows no identities").
			WithHint("it proves the IDs of engines: peers may have patterns such as \"id:%s\"", e.credentials.ID())
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	text := names.String()
	if known := s.byText[text]; known != nil {
		return known, nil
	}
	if len(s.list) >= rulesMax {
		s.sweepLocked()
	}
	if len(s.list) >= rulesMax {
		return nil, errs.New(errs.TooManyRequests, "register", "regions and leases have %d different lists of peers",
			rulesMax).WithHint("close some; or a pattern such as spiffe://prod/decode/* stands for many identities")
	}
	r := &rule{Names: names, number: s.made, given: mem.Peers{Admit: names.Admit}}
	s.made++
	s.listLocked(r)
	return r, nil
}

// listLocked takes a rule into the list.
func (s *rules) listLocked(r *rule) {
	if s.byText == nil {
		s.byText = make(map[string]*rule)
	}
	s.byText[r.String()] = r
	at, _ := slices.BinarySearchFunc(s.list, r, func(a, b *rule) int { return cmp.Compare(a.number, b.number) })
	s.list = slices.Insert(slices.Clone(s.list), at, r)
	r.listed = true
	s.came++
}

// sweepLocked drops the rules that no region has.
func (s *rules) sweepLocked() {
	s.list = slices.DeleteFunc(slices.Clone(s.list), func(r *rule) bool {
		if r.regions > 0 {
			return false
		}
		if r.listed = false; s.byText[r.String()] == r {
			delete(s.byText, r.String())
		}
		return true
	})
}

// enter notes that one more region has a rule; nil is none. Peers may see the region from now on, so the rule comes
// back into the list if it was swept out of it meanwhile.
func (s *rules) enter(r *rule) {
	if r == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if r.regions++; !r.listed {
		s.listLocked(r)
	}
}

// leave is the counterpart of enter.
func (s *rules) leave(r *rule) {
	if r == nil {
		return
	}
	s.mu.Lock()
	r.regions--
	s.mu.Unlock()
}

// rightsOf returns the rights of a peer by its names (transport.Peer.Names).
func (s *rules) rightsOf(proved string) rights {
	s.mu.RLock()
	list := s.list
	s.mu.RUnlock()
	var numbers []byte
	for _, r := range list {
		if r.Admit(proved) {
			numbers = binary.BigEndian.AppendUint32(numbers, r.number)
		}
	}
	return rights(numbers)
}

// peers returns the rule as transports take it.
func (r *rule) peers() *mem.Peers {
	if r == nil {
		return nil
	}
	return &r.given
}

// arrivals returns how many rules have entered the list so far.
func (s *rules) arrivals() uint64 {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.came
}

// sees reports whether rights include a region.
func (to rights) sees(r *region) bool {
	if r.Permission == mem.LocalReadWrite {
		return false
	}
	if r.rule == nil {
		return true
	}
	n := len(to) / numberBytes
	number := func(i int) uint32 { return binary.BigEndian.Uint32([]byte(to[i*numberBytes:][:numberBytes])) }
	at := sort.Search(n, func(i int) bool { return number(i) >= r.rule.number })
	return at < n && number(at) == r.rule.number
}
