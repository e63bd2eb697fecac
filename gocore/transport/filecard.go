package transport

import (
	"encoding/binary"
	"hash/crc32"

	"github.com/tent-engine/tent/gocore/errs"
)

// FileSpec says how a file is to be opened. A file is never truncated but by Truncate.
type FileSpec struct {
	Path     string // absolute
	Create   bool   // make it if it is absent, mode 0600, and grow it to Size
	Truncate bool
	ReadOnly bool
	Cached   bool   // through the page cache, also where the file system takes O_DIRECT
	Size     uint64 // 0: as it is
}

// FileCard says which file was meant, and how large it was when it was opened. Every Filer reads it: the one that the
// engine asked to open the file, and the others, which have routes to it. Another file that has got the name since is
// not taken for it.
type FileCard struct {
	Path     string // absolute, resolved
	Device   uint64 // of the file system, and the inode there
	Inode    uint64
	BornNs   uint64 // its birth, since 1970: a file system gives an inode number to the next file; 0: not known
	Size     uint64 // bytes
	ReadOnly bool   // how it was opened
	Cached   bool   // likewise
}

// The encoding of a card:
//
//	0 version  1 flags: 1 read-only, 2 cached  2 crc32 of the rest  6 device  14 inode  22 size  30 birth
//	38 path
const (
	cardVersion = 2
	cardHead    = 38
	FilePathMax = 4096 // bytes of a path

	cardReadOnly, cardCached = 1, 2
)

// Encode returns the card as the descriptor of the file's region.
func (c *FileCard) Encode() Descriptor {
	d := make(Descriptor, cardHead, cardHead+len(c.Path))
	d[0] = cardVersion
	if c.ReadOnly {
		d[1] |= cardReadOnly
	}
	if c.Cached {
		d[1] |= cardCached
	}
	binary.LittleEndian.PutUint64(d[6:], c.Device)
	binary.LittleEndian.PutUint64(d[14:], c.Inode)
	binary.LittleEndian.PutUint64(d[22:], c.Size)
	binary.LittleEndian.PutUint64(d[30:], c.BornNs)
	d = append(d, c.Path...)
	binary.LittleEndian.PutUint32(d[2:], crc32.ChecksumIEEE(d[6:])^uint32(d[1]))
	return d
}

// DecodeFileCard reads a card. It takes any bytes; those that are no card are InvalidArgument.
func DecodeFileCard(d Descriptor) (*FileCard, *errs.Error) {
	switch {
	case len(d) <= cardHead || len(d) > cardHead+FilePathMax:
		return nil, errs.New(errs.InvalidArgument, "file.import", "a descriptor of %d bytes names no file", len(d))
	case d[0] != cardVersion:
		return nil, errs.New(errs.InvalidArgument, "file.import", "descriptor of version %d, this build reads %d", d[0],
			cardVersion)
	case d[1] > cardReadOnly|cardCached || d[cardHead] != '/',
		binary.LittleEndian.Uint32(d[2:]) != crc32.ChecksumIEEE(d[6:])^uint32(d[1]):
		return nil, errs.New(errs.InvalidArgument, "file.import", "the descriptor is damaged")
	}
	return &FileCard{Path: string(d[cardHead:]), Device: binary.LittleEndian.Uint64(d[6:]),
		Inode: binary.LittleEndian.Uint64(d[14:]), Size: binary.LittleEndian.Uint64(d[22:]),
		BornNs: binary.LittleEndian.Uint64(d[30:]), ReadOnly: d[1]&cardReadOnly != 0, Cached: d[1]&cardCached != 0}, nil
}
