package errs

import (
	"strings"
	"unicode"
)

// Printable returns a text from outside as logs, errors and programs may see it, cut to a number of bytes. It replaces
// control characters, by which a peer could write lines or move the cursor there.
func Printable(text string, most int) string {
	text = strings.ToValidUTF8(text[:min(len(text), most)], "\uFFFD")
	return strings.Map(func(c rune) rune {
		if !unicode.IsPrint(c) {
			return '\uFFFD'
		}
		return c
	}, text)
}
