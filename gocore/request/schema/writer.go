package schema

import (
	"bytes"
	"fmt"
	"go/format"
	"strings"
	"unicode"
)

// origin is the mark by which people and tools know a generated file.
const origin = "Code generated from gocore/request/schema by go generate; DO NOT EDIT."

// page collects the lines of a file.
type page struct{ bytes.Buffer }

func (p *page) line(format string, args ...any) { fmt.Fprintf(p, format+"\n", args...) }

// text returns the lines as they are.
func (p *page) text() ([]byte, error) { return p.Bytes(), nil }

// gofmt returns the lines in Go's canonical layout.
func (p *page) gofmt() ([]byte, error) { return format.Source(p.Bytes()) }

// camel turns deadline_ns into DeadlineNs, and n into N; id is an initialism.
func camel(name string) string {
	var b strings.Builder
	for part := range strings.SplitSeq(name, "_") {
		if part == "id" {
			b.WriteString("ID")
			continue
		}
		b.WriteString(strings.ToUpper(part[:1]) + part[1:])
	}
	return b.String()
}

// sentence makes a help text begin with a capital letter and end with a full stop.
func sentence(text string) string {
	return string(unicode.ToUpper(rune(text[0]))) + text[1:] + "."
}

// goValue is the Go constant of a value: Integrity and CRC32C make IntegrityCRC32C, Intent and WEIGHT_LOADING
// IntentWeightLoading.
func goValue(kind, value string) string {
	if strings.ContainsAny(value, "0123456789") {
		return kind + value
	}
	return kind + camel(strings.ToLower(value))
}
