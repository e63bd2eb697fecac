package engine

import (
	"encoding/binary"
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
}

// rights name a set of peers that see the same regions: the numbers of the rules that admit them, in order.
type rights string

const numberBytes = 4 // of a rule in rights

// rulesMax bounds the different lists of an engine.
const rulesMax = 4096

// rules are all lists that regions have had, by their text. They stay: a program has few, and rights of peers are kept
// by their numbers.
type rules struct {
	mu     sync.RWMutex
	byText map[string]*rule
	list   []*rule // by number
}

// of returns the rule of memory that is to be registered, nil for none. The error is InvalidArgument.
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
		return nil, errs.New(errs.InvalidArgument, "register", "%d different lists of peers have been used", rulesMax).
			WithHint("a pattern such as spiffe://prod/decode/* stands for many identities")
	}
	r := &rule{Names: names, number: uint32(len(s.list)), given: mem.Peers{Admit: names.Admit}}
	if s.byText == nil {
		s.byText = make(map[string]*rule)
	}
	s.byText[text] = r
	s.list = append(s.list, r)
	return r, nil
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

// count returns how many rules there are.
func (s *rules) count() int {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return len(s.list)
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
