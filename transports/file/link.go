package file

import (
	"fmt"
	"strings"

	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/transport"
	"github.com/tent-engine/tent/transports/kit"
)

// link is a peer that is a file, or a folder of files. It has one rail, which is up at once: there is nothing to dial.
// All of it is guarded by base.mu.
type link struct {
	number      transport.Link
	path        string
	generation  uint32 // of the rail
	fenced      bool   // it comes up again when nothing of this generation is outstanding
	starved     bool   // Ready is owed
	gone        bool
	outstanding int
	files       []*file
}

const scheme = "file://"

// Attach implements transport.Transport. The peer's Address is file:// and an absolute path.
func (t *base) Attach(peer transport.Peer) (transport.Link, error) {
	if t.life.Closed() {
		return 0, kit.Closed(t.name + ".attach")
	}
	path, is := strings.CutPrefix(peer.Address, scheme)
	if !is || !strings.HasPrefix(path, "/") {
		return 0, errs.New(errs.InvalidArgument, t.name+".attach", "%q is not a file", peer.Address).
			WithScope(errs.ScopeLink, errs.SideLocal)
	}
	t.mu.Lock()
	if t.life.Closed() {
		t.mu.Unlock()
		return 0, kit.Closed(t.name + ".attach")
	}
	l := &link{path: strings.TrimSuffix(path, "/"), generation: 1}
	_, err := t.links.Attach(t.name+".attach", func(number transport.Link) *link { l.number = number; return l })
	info := t.railOf(l)
	t.mu.Unlock()
	if err != nil {
		return 0, err
	}
	t.sink.RailUp(info)
	return l.number, nil
}

func (t *base) railOf(l *link) transport.RailInfo {
	return transport.RailInfo{Rail: l.rail(), Local: t.name, Remote: l.path, Node: -1, BytesMax: t.settings.WindowBytes,
		SlicesMax: t.settings.Slices}
}

func (l *link) rail() transport.Rail { return transport.Rail{Link: l.number, Generation: l.generation} }

// covers reports whether a file is the link's, or below its folder.
func (l *link) covers(path string) bool {
	return path == l.path || strings.HasPrefix(path, l.path+"/")
}

// find returns the file of an equal descriptor that was imported before.
func (l *link) find(c *card) *file {
	for _, f := range l.files {
		if f.card == *c {
			return f
		}
	}
	return nil
}

// Stale implements transport.Transport.
func (t *base) Stale() uint64 { return t.links.Stale() }

// Detach implements transport.Transport. Waiting slices end here, those in the kernel when they come back.
func (t *base) Detach(number transport.Link) {
	t.mu.Lock()
	l := t.links.Detach(number)
	if l == nil {
		t.mu.Unlock()
		return
	}
	l.gone = true
	ended := t.cutOff(l, errDetached)
	var surplus []openEnds
	for _, f := range l.files {
		f.gone = true
		if f.users == 0 {
			surplus = append(surplus, t.forget(f))
		}
	}
	t.mu.Unlock()
	t.finish(ended, nil)
	t.closeSoonAll(surplus...)
}

// Fence implements transport.Transport.
func (t *base) Fence(rail transport.Rail) {
	t.mu.Lock()
	l := t.links.Lookup(rail.Link)
	if l == nil || l.rail() != rail || l.fenced {
		t.mu.Unlock()
		return
	}
	l.fenced = true
	ended := t.cutOff(l, errFence)
	again := l.revive()
	info := t.railOf(l)
	t.mu.Unlock()
	t.finish(ended, nil)
	if again {
		t.sink.RailUp(info)
	}
}

// revive begins the next generation of a fenced rail once nothing of the last one is left. The caller holds base.mu and
// reports to the core afterwards if it returns true.
func (l *link) revive() bool {
	if !l.fenced || l.gone || l.outstanding > 0 {
		return false
	}
	l.fenced = false
	l.starved = false
	l.generation++
	return true
}

// cutOff takes back every item of a link, of all links for nil. It returns those that nothing is under way for; the
// others end later. The caller holds t.mu.
func (t *base) cutOff(l *link, why *errs.Error) (ended []*item) {
	if l != nil && l.outstanding == 0 {
		return nil
	}
	for i := range t.items {
		if it := &t.items[i]; it.state != idle && (l == nil || it.link == l) && t.withdraw(it, why) {
			ended = append(ended, it)
		}
	}
	return ended
}

// Explain implements transport.Explainer: the files of a link, a line each.
func (t *base) Explain(number transport.Link) string {
	t.mu.Lock()
	defer t.mu.Unlock()
	l := t.links.Lookup(number)
	if l == nil {
		return fmt.Sprintf("%s: link %v has ended", t.name, number)
	}
	lines := []string{fmt.Sprintf("%s: %s, %s", t.name, l.path, t.mover.describe())}
	for _, f := range l.files {
		lines = append(lines, f.describe())
	}
	return strings.Join(lines, "\n")
}
