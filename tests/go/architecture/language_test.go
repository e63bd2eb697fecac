package architecture

import (
	"go/ast"
	"regexp"
	"strings"
)

// Bounds of language. A comment is read once by a reader who is busy.
const (
	lineColumnsMax   = 120 // a tab counts as tabColumns
	tabColumns       = 4
	sentenceWordsMax = 25

	// How many places of the whole tree may still break a rule. They go down as the numbers do, and never up.
	clausesMax   = 25
	wordsMax     = 0
	sentencesMax = 0
	linesMax     = 0
)

const readOnce = "a comment is read once: subject, verb, and at most 25 words in its first sentence"

// clause matches a word that begins a clause as a noun: "who looks there" for "a caller that looks there". It is crude,
// and so is bounded and not forbidden: some questions and relative clauses are fine.
var clause = regexp.MustCompile(`(?i)\b(who|what|whoever|whose|whatever)\b`)

// clauses finds the lines of comments with such a word.
func clauses(s *source) (out []violation) {
	if s.generated {
		return nil
	}
	for _, group := range s.syntax.Comments {
		for _, comment := range group.List {
			if word := clause.FindString(comment.Text); word != "" {
				out = append(out, s.at(comment.Pos(), "the reader wants the noun: a caller, the thread, the bytes",
					"a comment says %q", word))
			}
		}
	}
	return out
}

// plainWords are words of comments for which there is a plainer one.
var plainWords = map[string]string{"tells": "returns or says", "so many": "the number", "backend": "transport",
	"plugin": "transport", "session": "link"}

var plainPattern = regexp.MustCompile(`\b(tells|so many|backends?|plugins?|sessions?)\b`)

// ownNames are names of tent that have one of those words in them.
var ownNames = strings.NewReplacer("Package plugin ", "", `"plugins"`, "", "plugins=", "", "/plugin", "")

// plainEnglish finds words in comments that have a plainer one.
func plainEnglish(s *source) (out []violation) {
	if s.generated || within(s.folder, "tests/go/architecture") {
		return nil
	}
	for _, group := range s.syntax.Comments {
		for _, comment := range group.List {
			if word := plainPattern.FindString(ownNames.Replace(comment.Text)); word != "" {
				better := plainWords[strings.ToLower(word)]
				if better == "" {
					better = plainWords[strings.TrimSuffix(strings.ToLower(word), "s")]
				}
				out = append(out, s.at(comment.Pos(), "one thing has one word: "+better, "a comment says %q", word))
			}
		}
	}
	return out
}

// sentenceEnd ends the first sentence of a comment: a full stop, a list or another paragraph.
var sentenceEnd = regexp.MustCompile(`[.?!]["')]*(\s|$)|:\n|\n\n|\n[\t ]`)

// firstSentence checks the comments of declarations and fields. Comments inside functions are not judged: they belong
// to the line below them.
func firstSentence(s *source) (out []violation) {
	if s.generated {
		return nil
	}
	check := func(doc *ast.CommentGroup) {
		if doc == nil {
			return
		}
		text := doc.Text()
		if end := sentenceEnd.FindStringIndex(text); end != nil {
			text = text[:end[0]]
		}
		if n := len(strings.Fields(text)); n > sentenceWordsMax {
			out = append(out, s.at(doc.Pos(), readOnce, "the first sentence has %d words", n))
		}
	}
	check(s.syntax.Doc)
	ast.Inspect(s.syntax, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.FuncDecl:
			check(n.Doc)
			return false
		case *ast.GenDecl:
			check(n.Doc)
		case *ast.TypeSpec:
			check(n.Doc)
		case *ast.ValueSpec:
			check(n.Doc)
		case *ast.Field:
			check(n.Doc)
		}
		return true
	})
	return out
}

// lineLength checks the lines of a file. Those with a raw string are left out: the tag of a field cannot be broken, nor
// the text that a test expects.
func lineLength(s *source) (out []violation) {
	if s.generated {
		return nil
	}
	file, raw := s.positions.File(s.syntax.Pos()), s.rawLines()
	for i, line := range strings.Split(s.text, "\n") {
		if n := columns(line); n > lineColumnsMax && !raw[i+1] {
			out = append(out, s.at(file.LineStart(min(i+1, file.LineCount())),
				"a line is seen at once, also beside another file", "the line has %d columns, more than %d", n,
				lineColumnsMax))
		}
	}
	return out
}

// rawLines returns the lines on which a raw string begins, goes on or ends.
func (s *source) rawLines() map[int]bool {
	raw := map[int]bool{}
	ast.Inspect(s.syntax, func(n ast.Node) bool {
		if text, ok := n.(*ast.BasicLit); ok && strings.HasPrefix(text.Value, "`") {
			for line := s.positions.Position(text.Pos()).Line; line <= s.positions.Position(text.End()).Line; line++ {
				raw[line] = true
			}
		}
		return true
	})
	return raw
}

// columns is the width of a line.
func columns(line string) (n int) {
	for _, r := range line {
		if r == '\t' {
			n += tabColumns - n%tabColumns
		} else {
			n++
		}
	}
	return n
}
