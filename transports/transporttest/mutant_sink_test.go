package transporttest_test

import (
	"maps"
	"slices"

	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/mem"
	"github.com/tent-engine/tent/gocore/transport"
)

// mutantSink spoils the transport's calls.
type mutantSink struct {
	transport.Sink
	m *mutant
}

func (s mutantSink) Ready(r transport.Rail) {
	if s.m.name != "owes Ready" {
		s.Sink.Ready(r)
	}
}

func (s mutantSink) RailUp(info transport.RailInfo) {
	s.m.mu.Lock()
	s.m.up[info.Rail] = true
	s.m.mu.Unlock()
	s.Sink.RailUp(info)
}

func (s mutantSink) RailDown(rail transport.Rail, cause *errs.Error) {
	if s.m.name == "hides the end of a rail" {
		return
	}
	s.m.mu.Lock()
	delete(s.m.up, rail)
	s.m.mu.Unlock()
	s.Sink.RailDown(rail, cause)
	if s.m.name == "fences the rails beside a broken one" && rail.Index == 0 {
		rail.Index = 1
		s.m.Transport.Fence(rail)
	}
}

func (s mutantSink) LinkDown(link transport.Link, cause *errs.Error) {
	m := s.m
	switch {
	case m.name == "hides that a peer has restarted" && cause.Code == errs.PeerRestarted,
		m.name == "hides the end of a peer" && cause.Code == errs.PeerUnreachable:
		return
	case m.name == "detaches others when a peer ends":
		m.mu.Lock()
		others := slices.Collect(maps.Values(m.links))
		m.mu.Unlock()
		for _, other := range others {
			if other != link {
				m.Transport.Detach(other)
			}
		}
	}
	s.Sink.LinkDown(link, cause)
}

func (s mutantSink) Fenced(link transport.Link, key transport.RemoteKey, epoch transport.Epoch) {
	if s.m.name != "keeps the news of a fence" {
		s.Sink.Fenced(link, key, epoch)
	}
}

func (s mutantSink) Complete(list []transport.Completion) {
	m := s.m
	if m.name == sound || m.name == "allocates" {
		s.Sink.Complete(list)
		return
	}
	for _, c := range list {
		if m.hidden(c) {
			continue
		}
		switch m.name {
		case "completes before it writes": // the bytes of now are written once more, later
			if c.Err == nil && c.Slice.Op == transport.Read {
				at, bytes := c.Slice.Local, append([]byte(nil), mem.Bytes(c.Slice.Local, int(c.Slice.Length))...)
				m.putOff(func() { copy(mem.Bytes(at, len(bytes)), bytes) })
			}
		case "reads the source late":
			if again := *c.Slice; c.Err == nil && again.Op == transport.Write && again.Length > 1000 {
				m.putOff(func() { copyOver(m, &again) })
			}
		case "writes a byte too many":
			if c.Slice.Op == transport.Read {
				mem.Bytes(c.Slice.Local, int(c.Slice.Length)+1)[c.Slice.Length] ^= 1
			}
		case onDevice:
			if c.Slice.Op == transport.Read {
				_ = m.gpu.Store(c.Slice.Local+uintptr(c.Slice.Length), []byte{1})
			}
		case "moves what is gone":
			if c.Err != nil {
				c.Err, c.Bytes = nil, c.Slice.Length
			}
		case "blames the rail for a new key":
			if c.Err != nil {
				wrong := *c.Err
				c.Err = wrong.WithScope(errs.ScopeRail, errs.SidePath)
			}
		case "ends the rail of what is gone":
			if c.Err != nil {
				s.Sink.RailDown(c.Slice.Rail, c.Err)
			}
		case "blames the other end":
			if c.Err != nil {
				wrong := *c.Err
				c.Err = wrong.WithScope(errs.ScopeSlice, errs.SidePath)
			}
		case "forgets the neighbours":
			if m.gone = m.gone || c.Err != nil; m.gone && c.Err == nil {
				c.Err, c.Bytes = errs.New(errs.Lost, "mutant", "beside what is gone"), 0
			}
		case "blames the rail":
			if c.Err != nil {
				wrong := *c.Err
				c.Err = wrong.WithScope(errs.ScopeRail, errs.SidePath)
			}
		}
		switch again := c; m.name {
		case "completes again much later":
			m.putOff(func() { s.Sink.Complete([]transport.Completion{again}) })
		case "does not say which life it was":
			c.Id = 0
		}
		s.Sink.Complete([]transport.Completion{c})
		if m.name == "completes twice" {
			s.Sink.Complete([]transport.Completion{c})
		}
	}
}

// hidden reports completions that the mutant keeps to itself.
func (m *mutant) hidden(c transport.Completion) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.ends++
	return m.name == "never completes the third slice" && m.ends == 3 || m.seen[c.Slice.Id] ||
		m.name == "keeps what was withdrawn" && c.Err != nil && c.Err.Code == errs.Withdrawn
}
