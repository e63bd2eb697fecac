package file

import (
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/transport"
)

// itself is the part of a transport that both have.
func (t *base) itself() *base { return t }

// slowly is a mover that takes its time for a file that is opened, as a slow file system does.
type slowly struct {
	mover
	begun, goOn chan struct{}
}

func (s slowly) adopt(fd int, path string) (uintptr, *errs.Error) {
	close(s.begun)
	<-s.goOn
	return s.mover.adopt(fd, path)
}

// A file that gets its descriptors back while nobody needs it any more gives them back. The end of newRig looks for
// descriptors that are left.
func TestAFileThatIsLeftWhileItIsOpenedAgainIsClosed(t *testing.T) {
	for name, leave := range map[string]func(*rig, *opened){
		"detached":  func(r *rig, o *opened) { r.tr.Detach(o.link) },
		"forgotten": func(r *rig, o *opened) { r.tr.Fence(o.rail); r.tr.Forget(o.link, o.key) },
	} {
		t.Run(name, func(t *testing.T) {
			both(t, Settings{Descriptors: 1}, func(t *testing.T, r *rig) {
				folder := t.TempDir()
				first := r.open(transport.FileSpec{Path: filepath.Join(folder, "a"), Create: true, Size: 8192})
				r.open(transport.FileSpec{Path: filepath.Join(folder, "b"), Create: true, Size: 8192})
				m, b := r.memory(8192, true), r.tr.(interface{ itself() *base }).itself()
				require.False(t, b.files.Lookup(first.key).isOpen(), "one descriptor is allowed")
				slow := slowly{b.mover, make(chan struct{}), make(chan struct{})}
				b.mu.Lock()
				b.mover = slow
				b.mu.Unlock()
				s := first.slice(transport.Read, m, 0, 0, 4096)
				r.send(s)
				<-slow.begun
				leave(r, first)
				require.NotNil(t, r.wait(s)[0].Err)
				close(slow.goOn)
				b.tasks.Wait()
				b.mu.Lock()
				defer b.mu.Unlock()
				require.LessOrEqual(t, b.openFiles, 1)
				require.Equal(t, 1, b.files.Len())
			})
		})
	}
}

// Of too many open files, the one that was used longest ago gives its descriptors back, and not the one that was opened
// first.
func TestTheFileThatWasUsedLongestAgoIsClosed(t *testing.T) {
	both(t, Settings{Descriptors: 2}, func(t *testing.T, r *rig) {
		folder, m := t.TempDir(), r.memory(4096, true)
		file := func(name string) *opened {
			return r.open(transport.FileSpec{Path: filepath.Join(folder, name), Create: true, Size: 4096})
		}
		first, second := file("a"), file("b")
		r.must(first.slice(transport.Read, m, 0, 0, 4096))
		third := file("c")
		b := r.tr.(interface{ itself() *base }).itself()
		for o, open := range map[*opened]bool{first: true, second: false, third: true} {
			require.Equal(t, open, b.files.Lookup(o.key).isOpen(), o.file.Path)
		}
	})
}
