package architecture

import (
	"go/ast"
	"go/token"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/tent-engine/tent/transports/all"
)

// transportWords are places of gocore where a word that is also a transport's name means something else.
var transportWords = []struct{ file, word, means string }{
	{"gocore/control/listen.go", "tcp", "the network of net.Listen"},
	{"gocore/control/dial.go", "tcp", "the network of net.Dialer"},
	{"gocore/control/intake/intake.go", "tcp", "the kernel's protocol of connections"},
	{"gocore/control/reach.go", "tcp", "the network of net.Dialer"},
	{"gocore/scrape/scrape.go", "tcp", "the network of net.Listen"},
	{"gocore/meta/names/etcd.go", "tcp", "the network of net.Dialer"},
	{"gocore/security/owner.go", "tcp", "the kernel's table of connections"},
	{"gocore/security/tables.go", "tcp", "the kernel's table of connections"},
	{"gocore/mem/mem.go", "tpu", "a kind of memory"},
	{"gocore/config/shape.go", "tpu", "a kind of memory"},
	{"gocore/errs/errs.go", "rdma", "upstream's error code of a library"},
	{"gocore/share/file.go", "shm", "the folder of POSIX shared memory"},
	{"gocore/topology/topology.go", "rdma", "upstream's type of a NIC"},
	{"gocore/topology/topology.go", "tcp", "upstream's type of a NIC"},
	{"gocore/topology/read.go", "tcp", "upstream's type of a NIC"},
}

// transportNames are all names of all transports, in lower case.
var transportNames = func() map[string]bool {
	names := map[string]bool{}
	for _, line := range all.Transports() {
		for _, name := range append([]string{line.Name, line.Branch}, line.Spellings...) {
			names[strings.ToLower(name)] = name != ""
		}
	}
	return names
}()

var word = regexp.MustCompile(`[A-Za-z0-9_-]+`)

// namesNoTransport looks at the texts and the names of the core. A transport that is asked for by name there would make
// the next one a change of the core.
func namesNoTransport(s *source) (out []violation) {
	if s.test || !within(s.folder, "gocore") || s.generated {
		return nil
	}
	look := func(at token.Pos, found string) {
		found = strings.ToLower(found)
		if transportNames[found] && !meansElse(s.path, found) {
			out = append(out,
				s.at(at, "transports/all has the only table of names, and a new transport changes nothing in gocore",
					"names the transport %s", found))
		}
	}
	ast.Inspect(s.syntax, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.ImportSpec:
			return false
		case *ast.BasicLit:
			if n.Kind == token.STRING {
				text, _ := strconv.Unquote(n.Value)
				for _, w := range word.FindAllString(text, -1) {
					look(n.Pos(), w)
				}
			}
		case *ast.Ident:
			for _, w := range words(n.Name) {
				look(n.Pos(), w)
			}
		}
		return true
	})
	return out
}

// meansElse reports whether the word is in the table for a file, and remembers it.
func meansElse(file, word string) bool {
	for i, line := range transportWords {
		if line.file == file && line.word == word {
			transportWordsSeen[i] = true
			return true
		}
	}
	return false
}

var transportWordsSeen = map[int]bool{}

func TestWordsOfTransportsAreStillThere(t *testing.T) {
	for _, s := range sources(t) {
		namesNoTransport(s)
	}
	for i, line := range transportWords {
		if !transportWordsSeen[i] {
			t.Errorf("remove from the table: %s has no %q", line.file, line.word)
		}
	}
}
