package file

import (
	"encoding/binary"
	"hash/crc32"

	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/transport"
)

// card is the content of a descriptor: the file that was meant, and how large it was. Another file that has got its
// name meanwhile is not taken for it. Both transports of the family read it.
//
//	0 version  1 read-only  2 crc32 of the rest  6 device  14 inode  22 size  30 path
type card struct {
	path     string
	device   uint64
	inode    uint64
	size     uint64
	readOnly bool
}

const (
	cardVersion = 1
	cardHead    = 30
	pathMax     = 4096
)

func (c *card) encode() transport.Descriptor {
	d := make(transport.Descriptor, cardHead, cardHead+len(c.path))
	d[0] = cardVersion
	if c.readOnly {
		d[1] = 1
	}
	binary.LittleEndian.PutUint64(d[6:], c.device)
	binary.LittleEndian.PutUint64(d[14:], c.inode)
	binary.LittleEndian.PutUint64(d[22:], c.size)
	d = append(d, c.path...)
	binary.LittleEndian.PutUint32(d[2:], crc32.ChecksumIEEE(d[6:])^uint32(d[1]))
	return d
}

func decode(d transport.Descriptor) (*card, *errs.Error) {
	switch {
	case len(d) <= cardHead || len(d) > cardHead+pathMax:
		return nil, errs.New(errs.InvalidArgument, "file.import", "a descriptor of %d bytes names no file", len(d))
	case d[0] != cardVersion:
		return nil, errs.New(errs.InvalidArgument, "file.import", "descriptor of version %d, this build reads %d", d[0],
			cardVersion)
	case d[1] > 1 || binary.LittleEndian.Uint32(d[2:]) != crc32.ChecksumIEEE(d[6:])^uint32(d[1]) || d[cardHead] != '/':
		return nil, errs.New(errs.InvalidArgument, "file.import", "the descriptor is damaged")
	}
	return &card{path: string(d[cardHead:]), device: binary.LittleEndian.Uint64(d[6:]),
		inode: binary.LittleEndian.Uint64(d[14:]),
		size:  binary.LittleEndian.Uint64(d[22:]), readOnly: d[1] == 1}, nil
}
