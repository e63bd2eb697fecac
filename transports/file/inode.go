package file

import "sync"

// inode is the part of open files that they share when they are the same file.
type inode struct {
	syncing sync.Mutex // one fdatasync at a time; taken before base.mu
	named   bool       // its folder was synchronised; guarded by syncing

	// Guarded by base.mu.
	files int // that share it
	turns turns
}

// inodeNumber is a file of this machine, under any of its names.
type inodeNumber struct{ device, inode uint64 }

func (c *card) number() inodeNumber { return inodeNumber{c.Device, c.Inode} }

// shareInode gives an open file its inode, and leaveInode takes it. The caller holds t.mu.
func (t *base) shareInode(f *file) {
	if t.inodes[f.number()] == nil {
		t.inodes[f.number()] = new(inode)
	}
	f.inode = t.inodes[f.number()]
	f.inode.files++
}

func (t *base) leaveInode(f *file) {
	if f.inode.files--; f.inode.files == 0 {
		delete(t.inodes, f.number())
	}
}
