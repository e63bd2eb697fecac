package transporttest

import (
	_ "embed"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
)

// skipsText is the list of skipped rules: a line for each run of the suite and rule, "package test rule: reason". Runs
// below one test that skip the same share their lines, with a * for each of their names.
//
//go:embed skips.txt
var skipsText string

// rewriteEnv renews the list instead of comparing with it: TENT_TEST_REWRITE=1 go test -p 1 ./transports/...
const rewriteEnv = "TENT_TEST_REWRITE"

// skips collects the rules that one run of the suite skips.
type skips struct {
	name  string // of the run: package and test
	lines []string
	ran   int // rules that -run did not leave out
}

// newSkips begins a run. Its package is the folder of the file that called Run or Again.
func newSkips(t *testing.T) *skips {
	_, file, _, _ := runtime.Caller(3)
	return &skips{name: filepath.Base(filepath.Dir(file)) + " " + t.Name()}
}

func (s *skips) add(rule, why string) {
	s.lines = append(s.lines, fmt.Sprintf("%s %s: %s", s.name, rule, why))
}

// check compares a run with the list. A new skip fails the test; so does a line of the list for a rule that was not
// skipped, if every rule ran. Under the race detector more is skipped, so nothing is compared.
func (s *skips) check(t *testing.T) {
	if RaceEnabled {
		return
	}
	whole := s.ran == len(rules())
	if os.Getenv(rewriteEnv) != "" && whole {
		s.rewrite(t)
		return
	}
	for _, wrong := range s.differences(skipsText, whole) {
		t.Error(wrong)
	}
}

// differences compares a run, in which every rule ran or not, with a list.
func (s *skips) differences(list string, whole bool) (wrong []string) {
	var known []string
	for line := range strings.SplitSeq(list, "\n") {
		if words := strings.SplitN(line, " ", 3); len(words) == 3 && s.named(words[0]+" "+words[1]) {
			known = append(known, s.name+" "+words[2])
		}
	}
	for _, line := range s.lines {
		if !slices.Contains(known, line) {
			wrong = append(wrong, "a skip that is not in transports/transporttest/skips.txt: "+line)
		}
	}
	for _, line := range known {
		if whole && !slices.Contains(s.lines, line) {
			wrong = append(wrong, "remove from transports/transporttest/skips.txt, it is not skipped: "+line)
		}
	}
	return wrong
}

// named reports whether a package and a test of the list are those of this run.
func (s *skips) named(listed string) bool {
	matches, err := path.Match(listed, s.name)
	return listed == s.name || err == nil && matches
}

// rewrite replaces the lines of this run in the file, but for those that it shares.
func (s *skips) rewrite(t *testing.T) {
	_, here, _, _ := runtime.Caller(0)
	file := filepath.Join(filepath.Dir(here), "skips.txt")
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if len(s.differences(string(text), true)) == 0 {
		return
	}
	lines := slices.DeleteFunc(strings.Split(string(text), "\n"), func(line string) bool {
		return line == "" || strings.HasPrefix(line, s.name+" ")
	})
	lines = append(lines, s.lines...)
	slices.SortStableFunc(lines, func(a, b string) int { return strings.Compare(a, b) })
	if err := os.WriteFile(file, []byte(strings.Join(lines, "\n")+"\n"), 0o644); err != nil {
		t.Fatal(err)
	}
}
