package file

import "github.com/tent-engine/tent/gocore/transport"

// card is the file that was meant: the content of a descriptor. Both transports of the family read it.
type card struct{ transport.FileCard }
