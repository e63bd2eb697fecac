package file

import "github.com/tent-engine/tent/gocore/transport"

// card is the file that was meant: the content of a descriptor. Both transports of the family read it.
type card struct{ transport.FileCard }

// is reports whether two cards are of the same file. An inode number alone may be that of its successor.
func (c *card) is(other *card) bool {
	return c.Device == other.Device && c.Inode == other.Inode &&
		(c.BornNs == other.BornNs || c.BornNs == 0 || other.BornNs == 0)
}
