package transporttest

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tent-engine/tent/gocore/mem"
	"github.com/tent-engine/tent/gocore/transport"
)

// Where Info.Files is set, the far end of a link is a folder, and a peer's operands are files in it: the suite makes
// one wherever another transport's test registers memory for peers. A node has a folder of its own, which stands for
// its engine.

// needsEngine skips rules about the engine at the other end.
func needsEngine(_ Harness, tr transport.Transport) string {
	return unless(!tr.Info().Files, "its peers are files, not engines")
}

// folder is the node's, made at first use.
func (n *Node) folder(t *testing.T) string {
	n.w.mu.Lock()
	defer n.w.mu.Unlock()
	if n.files == "" {
		var err error
		n.files, err = os.MkdirTemp(n.w.h.Folder, "tent-"+n.name+"-")
		require.NoError(t, err)
		n.w.folders = append(n.w.folders, n.files)
	}
	return n.files
}

// seenBy is the node as another one attaches it.
func (n *Node) seenBy(t *testing.T, other *Node) transport.Peer {
	peer := n.Peer
	peer.Self = n == other
	if other.Info.Files {
		peer.Address = "file://" + n.folder(t)
	}
	return peer
}

// registerFile makes a file of a size, for peers to read and, if they may, to write.
func (n *Node) registerFile(t *testing.T, size uint64, permission mem.Permission) *Operand {
	t.Helper()
	path := filepath.Join(n.folder(t), fmt.Sprintf("%d.bin", n.w.birth()))
	filer := must[transport.Filer](n.Transport)
	made, err := filer.OpenFile(t.Context(), transport.FileSpec{Path: path, Create: true, Size: size})
	require.NoError(t, err)
	require.Equal(t, size, made.Size)
	if permission == mem.GlobalReadOnly {
		made, err = filer.OpenFile(t.Context(), transport.FileSpec{Path: path, ReadOnly: true})
		require.NoError(t, err)
		require.True(t, made.ReadOnly)
	}
	return &Operand{Memory: n.w.fileMemory(made.Path, size), Node: n, Descriptor: made.Encode()}
}

// fileMemory is a file as the suite looks at it. Its guard is its size: nothing moves beyond the end.
func (w *World) fileMemory(path string, size uint64) *Memory {
	d := &Device{Kind: mem.File, Location: "file",
		Load: func(into []byte, addr uintptr) {
			f, err := os.Open(path)
			if err == nil {
				_, err = f.ReadAt(into, int64(addr))
				_ = f.Close()
			}
			if err != nil {
				w.report("reading %s: %v", path, err)
			}
		},
		Store: func(addr uintptr, from []byte) {
			f, err := os.OpenFile(path, os.O_WRONLY, 0)
			if err == nil {
				_, err = f.WriteAt(from, int64(addr))
				_ = f.Close()
			}
			if err != nil {
				w.report("writing %s: %v", path, err)
			}
		}}
	m := &Memory{Size: size, device: d, undo: func() {}}
	m.bands = func() error {
		if info, err := os.Stat(path); err != nil || uint64(info.Size()) != size {
			return fmt.Errorf("%s had %d bytes: now %v, %v", path, size, info, err)
		}
		return nil
	}
	return w.keep(m)
}
