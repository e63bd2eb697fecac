package transporttest_test

import "github.com/tent-engine/tent/gocore/transport"

// pretended says of which slices a mutant says that they have arrived, and does nothing: of slice i of a list.
var pretended = map[string]func(m *mutant, list []*transport.Slice, i int) bool{
	"pretends to carry checked slices": func(_ *mutant, list []*transport.Slice, i int) bool { return list[i].Checked },
	"pretends to carry in the lowest class": func(_ *mutant, list []*transport.Slice, i int) bool {
		return list[i].Class == 2
	},
	"pretends to carry on the second rail": func(_ *mutant, list []*transport.Slice, i int) bool {
		return list[i].Rail.Index == 1
	},
	"pretends to carry one slice in a while": func(m *mutant, _ []*transport.Slice, _ int) bool {
		return m.submits.Add(1)%50 == 0
	},
	"pretends to carry over a second link": func(_ *mutant, list []*transport.Slice, i int) bool {
		return list[i].Rail.Link.Index() > 0
	},
	"pretends to carry the last of many": func(_ *mutant, list []*transport.Slice, i int) bool {
		return i > 100 && i == len(list)-1
	},
	"pretends to carry to itself": func(m *mutant, list []*transport.Slice, i int) bool {
		m.mu.Lock()
		defer m.mu.Unlock()
		return m.selves[list[i].Rail.Link]
	},
	"pretends to read where it is read, too": func(m *mutant, list []*transport.Slice, i int) bool {
		return m.node != "a" && list[i].Op == transport.Read
	},
}

// pretend submits the slices that the mutant carries, one after the other, and completes the others. The rail of both
// is up: the suite waits for it.
func (m *mutant) pretend(list []*transport.Slice, pretends func(*mutant, []*transport.Slice, int) bool) (taken int) {
	for i, s := range list {
		if pretends(m, list, i) {
			m.sink.Complete([]transport.Completion{{Slice: s, Id: s.Id, Bytes: s.Length}})
		} else if m.Transport.Submit(list[i:i+1]) == 0 {
			return i
		}
	}
	return len(list)
}
