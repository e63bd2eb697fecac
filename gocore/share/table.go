package share

import (
	"context"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tent-engine/tent/gocore/errs"
)

// Rows and entries are owned under locks of the kernel: F_OFD_SETLK on the byte where the row or entry begins. A lock
// ends with its holder, however that one ends. So the next process has nothing to clean up, and neither reused process
// numbers nor their namespaces matter.
//
//	lock of a row     held by its process for as long as it shares: a row with a free lock is of a dead process
//	lock of the table held for microseconds, to take or give back a row, and to find or make a device;
//	                  never by the data path

// rows has a bit for each row that is taken.
type rows []uint64

func (r rows) has(row int) bool { return r[row/64]>>(row%64)&1 != 0 }
func (r rows) add(row int)      { r[row/64] |= 1 << (row % 64) }
func (r rows) remove(row int)   { r[row/64] &^= 1 << (row % 64) }

func (f *file) taken() rows { return f.words(atTaken, takenWords) }

// lock takes the lock of a byte, without waiting.
func (f *file) lock(at int) bool { return f.flock(unix.F_WRLCK, at) == nil }

func (f *file) unlock(at int) { _ = f.flock(unix.F_UNLCK, at) }

func (f *file) flock(kind int16, at int) error {
	return unix.FcntlFlock(uintptr(f.fd), unix.F_OFD_SETLK, &unix.Flock_t{Type: kind, Start: int64(at), Len: 1})
}

func (n *naming) lockless(err error) *errs.Error {
	return errs.Wrap(errs.NotImplemented, op, err).
		WithHint("%s needs a kernel that locks open file descriptions; leave it empty to go without", n.key())
}

// alive reports whether another process holds a row.
func (f *file) alive(row int) bool {
	l := unix.Flock_t{Type: unix.F_WRLCK, Start: int64(rowAt(row)), Len: 1}
	return unix.FcntlFlock(uintptr(f.fd), unix.F_OFD_GETLK, &l) == nil && l.Type != unix.F_UNLCK
}

// underTable runs do with the table's lock. It waits for another process at most so long.
func (f *file) underTable(ctx context.Context, most time.Duration, do func() *errs.Error) *errs.Error {
	ctx, cancel := context.WithTimeout(ctx, most)
	defer cancel()
	pause := time.NewTimer(0)
	defer pause.Stop()
	for {
		switch err := f.flock(unix.F_WRLCK, devicesAt); err {
		case nil:
			defer f.unlock(devicesAt)
			return do()
		case unix.EAGAIN, unix.EACCES:
		default:
			return f.lockless(err)
		}
		select {
		case <-pause.C:
			pause.Reset(200 * time.Microsecond)
		case <-ctx.Done():
			return errs.New(errs.Timeout, op, "another process has held the table of %s for more than %v", f.path,
				most).
				WithHint("it may be stopped; or set %s to another name", f.key())
		}
	}
}

// join takes a row. The caller has the table's lock.
func (f *file) join() *errs.Error {
	taken := f.sweep()
	inUse := f.words(atInterval, 1)[0]
	switch {
	case inUse == uint64(f.interval):
	case !slices.ContainsFunc(taken, func(w uint64) bool { return w != 0 }): // its processes have ended
		f.put(atInterval, uint64(f.interval))
	default:
		return errs.New(errs.InvalidArgument, op,
			"%s/slot_rotation_interval_ms is %v, but the processes that share %s have %v",
			f.branch, f.interval, f.path, time.Duration(inUse)).
			WithHint("give all the same, or set %s to another name", f.key())
	}
	for row := range rowsMax {
		if taken.has(row) || !f.lock(rowAt(row)) {
			continue
		}
		if err := unix.Fallocate(f.fd, 0, int64(rowAt(row)), rowBytes); err != nil {
			f.unlock(rowAt(row))
			return errs.Wrap(codeOf(err), op, err).WithHint("%s is full", folder)
		}
		f.row = row
		f.put(rowAt(row), make([]uint64, rowBytes/8)...) // the row of the previous owner
		f.put(rowAt(row)+atPid, uint64(unix.Getpid()))
		taken.add(row)
		f.put(atTaken, taken...)
		return nil
	}
	return errs.New(errs.TooManyRequests, op, "%d engines share %s, and there is room for no more", rowsMax, f.path).
		WithHint("set %s to another name for some of them", f.key())
}

// sweep gives the rows of the dead back, and returns those of the living. The content of a row without owner does not
// count. The caller has the table's lock.
func (f *file) sweep() rows {
	taken := f.taken()
	for row := range rowsMax {
		if row == f.row || !taken.has(row) || !f.lock(rowAt(row)) {
			continue
		}
		taken.remove(row)
		f.unlock(rowAt(row))
	}
	f.put(atTaken, taken...)
	return taken
}

// leave gives our row back. The caller has the table's lock.
func (f *file) leave() *errs.Error {
	taken := f.taken()
	taken.remove(f.row)
	f.put(atTaken, taken...)
	return nil
}

// device finds the entry of a name, or makes it in place of one that is free or that no living process uses. The caller
// has the table's lock.
func (f *file) device(name string) (index int, problem *errs.Error) {
	index = -1
	b := make([]byte, nameBytes)
	copy(b[:nameBytes-1], name)
	words, used := wordsOf(b), f.used()
	for i := range devicesMax {
		entry := f.words(deviceAt(i), nameBytes/8)
		switch {
		case slices.Equal(entry, words):
			f.use(i)
			return i, nil
		case index < 0 && (entry[0] == 0 || used>>i&1 == 0):
			index = i
		}
	}
	if index < 0 {
		return -1, errs.New(errs.TooManyRequests, op, "%s has %d devices in use, and there is no room for %s", f.path,
			devicesMax, name)
	}
	// The first word last: an entry without it is free, so there is never half a name.
	f.put(deviceAt(index), make([]uint64, deviceBytes/8)...)
	f.put(deviceAt(index)+8, words[1:]...)
	f.put(deviceAt(index), words[0])
	f.use(index)
	return index, nil
}

// used has a bit for each device that a living process uses.
func (f *file) used() (bits uint64) {
	taken := f.sweep()
	for row := range rowsMax {
		if taken.has(row) {
			bits |= f.words(rowAt(row)+atUses, 1)[0]
		}
	}
	return bits
}

// use notes that we use a device.
func (f *file) use(device int) {
	at := rowAt(f.row) + atUses
	f.put(at, f.words(at, 1)[0]|1<<device)
}

// processes is the number of engines that share the file, this one among them.
func (f *file) processes() int {
	n, taken := 1, f.taken()
	for row := range rowsMax {
		if row != f.row && taken.has(row) && f.alive(row) {
			n++
		}
	}
	return n
}
