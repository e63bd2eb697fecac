package all

import "sync"

// Hints and masks name a transport by its number, and a plug-in has none of upstream's. It is given one when its name
// is first seen, and keeps it while the process lives: Python and C look a name up once, for all engines. Bit n modulo
// 64 stands for number n in masks, and no other transport has the bits of these: upstream's numbers have the bits from
// 1 on, and tent's own, 64, 78 and 79, have the bits 0, 14 and 15.
const (
	plugInsFirst = 80  // bit 16
	plugInsLast  = 127 // bit 63
)

var numbers struct {
	sync.Mutex
	byName map[string]uint8
}

// numberOf returns the number of a plug-in's transport. It is 0, which no hint names, beyond 48 names in a process.
func numberOf(name string) uint8 {
	numbers.Lock()
	defer numbers.Unlock()
	if n, known := numbers.byName[name]; known {
		return n
	}
	n := plugInsFirst + len(numbers.byName)
	if n > plugInsLast {
		return 0
	}
	if numbers.byName == nil {
		numbers.byName = map[string]uint8{}
	}
	numbers.byName[name] = uint8(n)
	return uint8(n)
}
