package share

import (
	"math/bits"
	"sync/atomic"

	"github.com/tent-engine/tent/gocore/clock"
	"github.com/tent-engine/tent/gocore/mem"
	"github.com/tent-engine/tent/gocore/qos"
)

// The file. Words are of the machine's byte order; it never leaves the machine.
//
//	0        magic u64, version i32, current_slot i32: as the QoS seed shows them
//	16       48 bytes of the seed's robust mutex, which nobody takes here: zero
//	64       length of a slot in ns; clock of the makers
//	128      a bit for each row that is taken: a hint where to look, the row's lock is the truth
//	4096     devices, 128 bytes each: name (empty: free), and on a line of its own when each class was last wanted; its
//	         claim ends a slot later
//	16384    rows, a page each: the process (for people), the devices that it uses; for each device its bytes in
//	         flight and the time of that report
//
// A row is written by one process and read by the others, so no two write to one cache line but for the times of a
// device (at most once a grain) and current_slot (once a slot), and a row costs memory only once it is taken.
const (
	magic       = 0x2025082772805203
	version     = 1001 // upstream's layout is 10; ours begins far from it
	headerBytes = 4096

	atMagic    = 0
	atVersion  = 8 // with current_slot in the upper half: one word
	atInterval = 64
	atClock    = 72
	atTaken    = 128
	takenWords = rowsMax / 64

	devicesMax  = 64
	deviceBytes = 128
	nameBytes   = 64 // with a zero at its end
	atWanted    = 64 // in a device
	devicesAt   = headerBytes

	rowsMax   = 256
	rowBytes  = 4096
	rowsAt    = devicesAt + 3*4096 // devices take two pages; one is left free
	atPid     = 0                  // in a row
	atUses    = 8                  // a bit for each device
	atCells   = 64
	cellBytes = 16 // bytes in flight, time

	fileBytes = rowsAt + rowsMax*rowBytes
)

func deviceAt(device int) int { return devicesAt + device*deviceBytes }
func rowAt(row int) int       { return rowsAt + row*rowBytes }

func cellAt(row, device int) int { return rowAt(row) + atCells + device*cellBytes }

// word is a word of a mapped file. It is touched only under mem.Guard: anybody may cut the file short.
func word(base uintptr, at int) *uint64 { return &mem.Words(base+uintptr(at), 1)[0] }

func load(base uintptr, at int) uint64     { return atomic.LoadUint64(word(base, at)) }
func store(base uintptr, at int, v uint64) { atomic.StoreUint64(word(base, at), v) }

// versionWord holds version and current slot.
func versionWord(slot int) uint64 { return version | uint64(slot)<<32 }

// Words are checked after each read: another process, or a mistake, may have written anything.
const (
	ahead     = clock.Time(1e9)   // how far a time may lie in the future: processes read their clocks before they write
	staleness = clock.Time(200e6) // bytes without confirmation for this time are those of a killed or stopped process
	bytesMost = 1 << 40           // in flight of one process on one device
)

// fresh is the bytes of a cell, 0 if it says nothing any more.
func fresh(bytes uint64, said, now clock.Time) uint64 {
	if said <= now-staleness || said > now+ahead {
		return 0
	}
	return min(bytes, bytesMost)
}

// believed is a time at which a class was wanted: never later than now, and 0 if it is nonsense.
func believed(said, now clock.Time) clock.Time {
	if said < 0 || said > now+ahead {
		return 0
	}
	return min(said, now)
}

// look is one reading of the others' rows about a device.
type look struct {
	wanted [qos.Classes]clock.Time
	others uint64 // bytes
}

// read gathers it. own is the row that is not counted, -1 for none.
func (l *look) read(base uintptr, device, own int, now clock.Time) {
	for class := range l.wanted {
		l.wanted[class] = believed(clock.Time(load(base, deviceAt(device)+atWanted+class*8)), now)
	}
	l.others = 0
	for i := range takenWords {
		for taken := load(base, atTaken+i*8); taken != 0; taken &= taken - 1 {
			if row := i*64 + bits.TrailingZeros64(taken); row != own {
				at := cellAt(row, device)
				l.others += fresh(load(base, at), clock.Time(load(base, at+8)), now)
			}
		}
	}
}
