// Package audit writes the security events of an engine into a file: JSON lines, for the user of the engine alone.
//
// Note never waits: a disk that stands still must not hold up handshakes. Lines go through a queue to a goroutine.
// Those beyond the queue or the rate are counted, and the next line has their number. A line that a full disk has cut
// counts as well, and stays as it is: others may have written behind it. A file that was moved away, as by logrotate,
// is made again under its name.
package audit

import (
	"encoding/json"
	"os"
	"sync"
	"syscall"
	"time"

	"github.com/tent-engine/tent/gocore/errs"
)

// Entry is a line. Time and Lost are the log's.
type Entry struct {
	Time      time.Time `json:"time"`
	Engine    string    `json:"engine"`
	Event     string    `json:"event"`
	Peer      string    `json:"peer,omitempty"` // its address by its own word, where nothing proves one
	ID        string    `json:"id,omitempty"`   // that Peer has proved
	Host      string    `json:"host,omitempty"` // that its call came from
	Transport string    `json:"transport,omitempty"`
	Note      string    `json:"note,omitempty"`
	N         int       `json:"n,omitempty"`
	Error     string    `json:"error,omitempty"`
	Lost      int       `json:"lost,omitempty"` // lines before this one that are not in the file
}

const (
	queueMax = 256 // lines that wait for the disk
	rateMax  = 100 // lines a second
)

// Log is an open file. Its methods may be called from any goroutine; nil is a log that writes nothing.
type Log struct {
	path    string
	failed  func(error)
	entries chan Entry
	done    chan struct{}

	mu     sync.Mutex
	second time.Time // in which lines were taken
	taken  int
	lost   int // that the next line is to count
	owed   int // lines that are neither in the file nor counted there
	closed bool

	file  *os.File // of the goroutine, as are all below
	add   func(*os.File, []byte) (int, error)
	ill   bool // the last write failed
	unput int  // lines that could not be written
}

// Open opens or makes the file, and starts the goroutine that Close ends. Failed hears of the first of several failures
// to write, from that goroutine. The error is InvalidArgument: the file is a link, or others may read it.
func Open(path string, failed func(error)) (*Log, error) {
	file, err := open(path)
	if err != nil {
		return nil, err
	}
	l := &Log{path: path, failed: failed, file: file, add: (*os.File).Write, entries: make(chan Entry, queueMax),
		done: make(chan struct{})}
	go l.write()
	return l, nil
}

func open(path string) (*os.File, error) {
	// A FIFO would block until somebody reads, and a link may lead to a file that is not ours to write.
	const flags = os.O_RDWR | os.O_APPEND | os.O_CREATE | syscall.O_NOFOLLOW | syscall.O_NONBLOCK
	file, err := os.OpenFile(path, flags, 0o600)
	if err != nil {
		return nil, refusal("%v", err)
	}
	if err := mayHold(file, path); err != nil {
		_ = file.Close() // nothing was written
		return nil, err
	}
	return file, nil
}

// mayHold returns why an open file must not hold the lines.
func mayHold(file *os.File, path string) error {
	about, err := file.Stat()
	if err != nil {
		return refusal("%v", err)
	}
	owner, is := about.Sys().(*syscall.Stat_t)
	switch {
	case !about.Mode().IsRegular():
		return refusal("%q is no file", path)
	case is && int(owner.Uid) != os.Geteuid():
		return refusal("%q belongs to another user", path)
	case about.Mode().Perm()&0o077 != 0:
		return refusal("%q has mode %04o: its group or others may use it; chmod 600 keeps it for you", path,
			about.Mode().Perm())
	}
	return nil
}

func refusal(format string, args ...any) error {
	return errs.New(errs.InvalidArgument, "security", "security/audit: "+format, args...).
		WithScope(errs.ScopeTransport, errs.SideLocal)
}

// Note takes a line. It does not wait, and drops the line if there is no room.
func (l *Log) Note(e Entry) {
	if l == nil {
		return
	}
	e.Time = time.Now().UTC()
	l.mu.Lock()
	defer l.mu.Unlock()
	l.owed++
	if second := e.Time.Truncate(time.Second); second != l.second {
		l.second, l.taken = second, 0
	}
	if l.closed || l.taken >= rateMax || len(l.entries) == queueMax {
		l.lost++
		return
	}
	l.taken++
	e.Lost, l.lost = l.lost, 0
	l.entries <- e // there is room: this is the only place that sends, under the mutex
}

// Close writes the lines that wait, and closes the file. It returns the number of lines that are not there and not
// counted there. A disk that stands still beyond limit keeps the goroutine, which goes on if it moves again. Nil and a
// closed log are fine.
func (l *Log) Close(limit time.Duration) (lost int) {
	if l == nil {
		return 0
	}
	l.mu.Lock()
	if !l.closed {
		l.closed = true
		close(l.entries)
	}
	l.mu.Unlock()
	timer := time.NewTimer(limit)
	defer timer.Stop()
	select {
	case <-l.done:
	case <-timer.C:
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.owed
}

// write is the goroutine.
func (l *Log) write() {
	defer close(l.done)
	for e := range l.entries {
		e.Lost += l.unput
		err := l.put(e)
		switch {
		case err == nil:
			l.unput = 0
			l.mu.Lock()
			l.owed -= e.Lost + 1
			l.mu.Unlock()
		case !l.ill:
			l.failed(errs.Wrap(errs.Internal, "security/audit", err))
		}
		if l.ill = err != nil; l.ill {
			l.unput = e.Lost + 1
		}
	}
	_ = l.file.Close() // each line was written, and a failure reported
}

// put writes a line by one call, so that engines may share a file.
func (l *Log) put(e Entry) error {
	if there, err := os.Lstat(l.path); err != nil || !l.isOpen(there) {
		file, err := open(l.path)
		if err != nil {
			return err
		}
		_ = l.file.Close() // it was moved away, with all of its lines
		l.file = file
	}
	line, err := json.Marshal(e)
	if err != nil {
		return err
	}
	if l.isCut() {
		line = append([]byte("\n"), line...)
	}
	n, err := l.add(l.file, append(line, '\n'))
	if n == len(line) {
		return nil // all but its end, which the next line brings
	}
	return err
}

// isCut reports whether the file ends in the midst of a line, as a full disk or a crash leaves it. The next line would
// be lost with it.
func (l *Log) isCut() bool {
	about, err := l.file.Stat()
	if err != nil || about.Size() == 0 {
		return false
	}
	var last [1]byte
	n, _ := l.file.ReadAt(last[:], about.Size()-1) // a file that cannot be read may still be written
	return n == 1 && last[0] != '\n'
}

func (l *Log) isOpen(there os.FileInfo) bool {
	about, err := l.file.Stat()
	return err == nil && os.SameFile(about, there)
}
