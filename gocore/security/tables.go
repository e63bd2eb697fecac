package security

import (
	"errors"
	"os"
	"sync"
)

// tables are the kernel's lists of TCP sockets. The kernel walks all its sockets for one look, for milliseconds. So all
// callers during a look share the next one, which begins when their connections are there.
type tables struct {
	look func() ([]string, error)

	mu   sync.Mutex
	last *look // that has begun
	next *look // that waits for its end, nil while nobody has asked
}

// look is one reading of the tables.
type look struct {
	done  chan struct{} // closed when the rest is there
	texts []string
	err   error
}

var kernelTables = tables{look: readTables}

// read returns the tables as they were at some moment after the call. It takes two looks at most.
func (t *tables) read() ([]string, error) {
	t.mu.Lock()
	l, before, first := t.next, t.last, t.next == nil
	if first {
		l = &look{done: make(chan struct{})}
		t.next = l
	}
	t.mu.Unlock()
	if !first {
		<-l.done
		return l.texts, l.err
	}
	if before != nil {
		<-before.done
	}
	t.mu.Lock()
	t.last, t.next = l, nil // later callers are too late for this look
	t.mu.Unlock()
	l.texts, l.err = t.look()
	close(l.done)
	return l.texts, l.err
}

// readTables reads both tables; a kernel without IPv6 has one.
func readTables() ([]string, error) {
	var texts []string
	for _, table := range []string{"/proc/net/tcp", "/proc/net/tcp6"} {
		text, err := os.ReadFile(table)
		if errors.Is(err, os.ErrNotExist) && table != "/proc/net/tcp" {
			continue
		}
		if err != nil {
			return nil, err
		}
		texts = append(texts, string(text))
	}
	return texts, nil
}
