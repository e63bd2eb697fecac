package audit

import (
	"bufio"
	"encoding/json"
	"os"
	"path/filepath"
	"runtime/debug"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tent-engine/tent/gocore/errs"
)

func lines(t *testing.T, path string) (list []Entry) {
	t.Helper()
	file, err := os.Open(path)
	require.NoError(t, err)
	defer file.Close()
	for scanner := bufio.NewScanner(file); scanner.Scan(); {
		var e Entry
		require.NoError(t, json.Unmarshal(scanner.Bytes(), &e), scanner.Text())
		list = append(list, e)
	}
	return list
}

const patience = 20 * time.Second

func unheard(t *testing.T) func(error) {
	return func(err error) { t.Errorf("the log failed: %v", err) }
}

func TestLinesAreAddedForTheUserAlone(t *testing.T) {
	path := filepath.Join(t.TempDir(), "audit.jsonl")
	for _, word := range []string{"first", "second \n\"{"} {
		l, err := Open(path, unheard(t))
		require.NoError(t, err)
		l.Note(Entry{Event: word, Peer: "p", N: 3})
		require.Zero(t, l.Close(patience))
		require.Zero(t, l.Close(patience))
		l.Note(Entry{Event: "late"})
	}
	about, err := os.Stat(path)
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o600), about.Mode().Perm())
	list := lines(t, path)
	require.Len(t, list, 2)
	require.Equal(t, "first", list[0].Event)
	require.Equal(t, "second \n\"{", list[1].Event)
	require.Equal(t, 3, list[1].N)
	require.False(t, list[1].Time.IsZero())
	var none *Log
	none.Note(Entry{})
	require.Zero(t, none.Close(0))
}

func TestFilesOfOthersAreRefused(t *testing.T) {
	folder := t.TempDir()
	in := func(name string) string { return filepath.Join(folder, name) }
	require.NoError(t, os.WriteFile(in("public"), nil, 0o600))
	require.NoError(t, os.Chmod(in("public"), 0o644))
	require.NoError(t, os.WriteFile(in("target"), nil, 0o600))
	require.NoError(t, os.Symlink("target", in("link")))
	require.NoError(t, syscall.Mkfifo(in("fifo"), 0o600))
	for name, cause := range map[string]string{"public": "chmod 600", "link": "symbolic", "fifo": "",
		"none/x": "no such", ".": "directory"} {
		_, err := Open(in(name), unheard(t))
		require.Equal(t, errs.InvalidArgument, errs.CodeOf(err), "%s: %v", name, err)
		require.ErrorContains(t, err, "security/audit")
		require.ErrorContains(t, err, cause)
	}
}

// A file that was moved away keeps its lines, and the next ones go to a new file.
func TestAFileThatIsMovedAwayIsMadeAgain(t *testing.T) {
	path := filepath.Join(t.TempDir(), "audit.jsonl")
	l, err := Open(path, unheard(t))
	require.NoError(t, err)
	require.NoError(t, l.put(Entry{Event: "old"}))
	require.NoError(t, os.Rename(path, path+".1"))
	l.Note(Entry{Event: "new"})
	require.Zero(t, l.Close(patience))
	require.Equal(t, "old", lines(t, path+".1")[0].Event)
	require.Equal(t, "new", lines(t, path)[0].Event)
}

// Lines beyond the rate are counted, and the count stands in the next line that is written.
func TestLinesBeyondTheRateAreCounted(t *testing.T) {
	path := filepath.Join(t.TempDir(), "audit.jsonl")
	l, err := Open(path, unheard(t))
	require.NoError(t, err)
	const noted = 5000
	for range noted {
		l.Note(Entry{Event: "x"})
	}
	l.mu.Lock()
	l.taken = 0 // the next second
	l.mu.Unlock()
	l.Note(Entry{Event: "x"})
	require.Zero(t, l.Close(patience))
	total := 0
	list := lines(t, path)
	for _, e := range list {
		total += 1 + e.Lost
	}
	require.Less(t, len(list), noted/2)
	require.Equal(t, noted+1, total)
}

// A failure to write is said once, and the lines that it cost stand in the first one that is written again.
func TestAFailureIsSaidOnce(t *testing.T) {
	folder := filepath.Join(t.TempDir(), "log")
	require.NoError(t, os.Mkdir(folder, 0o700))
	path := filepath.Join(folder, "audit.jsonl")
	said := make(chan error, 8)
	l, err := Open(path, func(err error) { said <- err })
	require.NoError(t, err)
	require.NoError(t, os.Rename(folder, folder+".gone"))
	l.Note(Entry{Event: "a"})
	require.ErrorContains(t, <-said, "no such file")
	require.NoError(t, os.Rename(folder+".gone", folder))
	l.Note(Entry{Event: "c"})
	require.Zero(t, l.Close(patience))
	require.Empty(t, said)
	list := lines(t, path)
	require.Len(t, list, 1)
	require.Equal(t, "c", list[0].Event)
	require.Equal(t, 1, list[0].Lost)
}

// fill leaves room for some bytes on the disk of a log until the returned function runs, which is between two writes.
func fill(l *Log, room int) (free func()) {
	l.add = func(file *os.File, b []byte) (int, error) {
		n, err := file.Write(b[:min(room, len(b))])
		if room -= n; err == nil && n < len(b) {
			err = syscall.ENOSPC
		}
		return n, err
	}
	return func() { l.add = (*os.File).Write }
}

// wholeLines counts the lines that can be read, with those that they count, and the ones that are cut.
func wholeLines(t *testing.T, path string) (counted, cut int) {
	t.Helper()
	text, err := os.ReadFile(path)
	require.NoError(t, err)
	for line := range strings.Lines(string(text)) {
		var e Entry
		if json.Unmarshal([]byte(line), &e) != nil {
			cut++
			continue
		}
		counted += e.Lost + 1
	}
	return counted, cut
}

// A disk that is full in the midst of a line costs that line alone. The next one, of this engine or of another one with
// the same file, stands on a line of its own and counts the one that was lost.
func TestALineThatAFullDiskCutsCostsItselfAlone(t *testing.T) {
	for room := range 60 { // less than a line
		path := filepath.Join(t.TempDir(), "audit.jsonl")
		said := make(chan error, 8)
		l, err := Open(path, func(err error) { said <- err })
		require.NoError(t, err)
		other, err := Open(path, unheard(t))
		require.NoError(t, err)
		require.NoError(t, other.put(Entry{Event: "before"}))
		free := fill(l, room)
		l.Note(Entry{Event: "cut"})
		require.ErrorIs(t, <-said, syscall.ENOSPC)
		free()
		require.NoError(t, other.put(Entry{Event: "of another engine"}))
		l.Note(Entry{Event: "behind"})
		require.Zero(t, l.Close(patience))
		require.Zero(t, other.Close(patience))
		counted, cut := wholeLines(t, path)
		require.Equal(t, 4, counted, "room for %d bytes", room)
		require.Equal(t, min(room, 1), cut, "room for %d bytes", room)
	}
}

// A line that lacks its end alone is there, and the next one brings the end.
func TestALineWithoutItsEndIsThere(t *testing.T) {
	path := filepath.Join(t.TempDir(), "audit.jsonl")
	l, err := Open(path, unheard(t))
	require.NoError(t, err)
	line, err := json.Marshal(Entry{Event: "x"})
	require.NoError(t, err)
	free := fill(l, len(line))
	require.NoError(t, l.put(Entry{Event: "x"}))
	free()
	require.NoError(t, l.put(Entry{Event: "y"}))
	require.Zero(t, l.Close(patience))
	list := lines(t, path)
	require.Equal(t, []string{"x", "y"}, []string{list[0].Event, list[1].Event})
}

// A disk that stays full leaves its lines to the count of Close.
func TestCloseCountsTheLinesOfAFullDisk(t *testing.T) {
	path := filepath.Join(t.TempDir(), "audit.jsonl")
	l, err := Open(path, func(error) {})
	require.NoError(t, err)
	const noted = 5
	fill(l, 300) // less than five lines
	for range noted {
		l.Note(Entry{Event: "x", Note: strings.Repeat("n", 50)})
	}
	lost := l.Close(patience)
	require.NotZero(t, lost)
	counted, cut := wholeLines(t, path)
	require.Equal(t, noted, counted+lost)
	require.Equal(t, 1, cut)
}

// A file that is made again for others, as by logrotate with mode 0644, is refused at each line, and left open at none.
func TestARefusedFileIsClosed(t *testing.T) {
	path := filepath.Join(t.TempDir(), "audit.jsonl")
	require.NoError(t, os.WriteFile(path, nil, 0o600))
	require.NoError(t, os.Chmod(path, 0o644))
	defer debug.SetGCPercent(debug.SetGCPercent(-1)) // the collector would close it
	open := func() int {
		list, err := os.ReadDir("/proc/self/fd")
		require.NoError(t, err)
		return len(list)
	}
	before := open()
	for range 50 {
		_, err := Open(path, unheard(t))
		require.ErrorContains(t, err, "chmod 600")
	}
	require.Less(t, open(), before+25)
}

// The goroutine hangs, as in a write to a disk that stands still. Close ends all the same, and counts the line in the
// goroutine's hands, those behind it, and those that were dropped.
func TestCloseEndsOverADiskThatStandsStill(t *testing.T) {
	folder := filepath.Join(t.TempDir(), "log")
	require.NoError(t, os.Mkdir(folder, 0o700))
	path := filepath.Join(folder, "audit.jsonl")
	stands, moves := make(chan struct{}), make(chan struct{})
	l, err := Open(path, func(error) { close(stands); <-moves })
	require.NoError(t, err)
	l.Note(Entry{Event: "written"})
	require.Eventually(t, func() bool { return len(lines(t, path)) == 1 }, patience, time.Millisecond)
	require.NoError(t, os.Rename(folder, folder+".gone"))
	l.Note(Entry{Event: "hangs"})
	<-stands
	const waiting = queueMax + 50
	for range waiting {
		l.Note(Entry{Event: "waits, or is dropped"})
	}
	require.Equal(t, waiting+1, l.Close(time.Millisecond))
	require.NoError(t, os.Rename(folder+".gone", folder))
	close(moves)
	lost, there := l.Close(patience), 0
	for _, e := range lines(t, path) {
		there += e.Lost + 1
	}
	require.Equal(t, waiting+2, there+lost, "each line is there, counted there, or counted by Close")
}
