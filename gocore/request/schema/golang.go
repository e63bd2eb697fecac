package schema

import "strings"

// renderTerms makes the Go struct of the terms, its check and the packed form.
func renderTerms() ([]byte, error) {
	p := &page{}
	p.line("// %s\n\npackage request\n", origin)
	p.line("import (\n%q\n%q\n%q\n)\n", modulePath+"gocore/clock", modulePath+"gocore/errs",
		modulePath+"gocore/transport")
	p.line("// Terms say how the bytes of a request are to travel, beside where they lie. The zero value is a READ " +
		"of the")
	p.line("// highest class, without a deadline, that promises nothing special.")
	p.line("type Terms struct {")
	for _, wide := range []bool{true, false} { // the wide ones first: no padding
		for _, t := range Terms {
			if t.wide() == wide {
				p.line("%s %s // %s", t.Field, t.Go, t.Help)
			}
		}
	}
	p.line("}\n")
	for _, t := range Terms {
		renderEnumeration(p, &t)
	}
	renderCheck(p)
	renderSame(p)
	renderPacked(p)
	return p.gofmt()
}

// modulePath begins every import path of this repository.
const modulePath = "github.com/tent-engine/tent/"

// renderEnumeration makes the type of a term that has one of its own, and its values.
func renderEnumeration(p *page, t *Term) {
	if t.Go != t.Field || len(t.Values) == 0 {
		return
	}
	p.line("// %s is the %s of a request.\ntype %s uint8\n", t.Go, t.Name, t.Go)
	p.line("// Values of %s.\nconst (", t.Go)
	for i, v := range t.Values {
		p.line("%s %s = %d", goValue(t.Go, v), t.Go, i)
	}
	p.line(")\n")
	p.line("var names%s = [...]string{%s}\n", t.Go, quoted(t.Values))
	p.line("func (v %s) String() string {", t.Go)
	p.line("if int(v) < len(names%s) {\nreturn names%s[v]\n}\nreturn \"?\"\n}\n", t.Go, t.Go)
}

// wide reports whether the term takes 64 bits in the core, too.
func (t *Term) wide() bool {
	return t.Kind == Instant || t.Kind == Named || t.Kind == Set || t.Kind == Handle
}

func quoted(values []string) string {
	var list []string
	for _, v := range values {
		list = append(list, `"`+strings.ToLower(v)+`"`)
	}
	return strings.Join(list, ", ")
}

// renderCheck makes the one place where the range of each term is checked.
func renderCheck(p *page) {
	p.line("// Check returns an InvalidArgument error that names the first term out of its range, or nil. It is " +
		"the only")
	p.line("// check of ranges between a face and the wire.")
	p.line("func (t *Terms) Check() *errs.Error {\nswitch {")
	for _, t := range Terms {
		switch {
		case t.Kind == Instant:
			p.line("case t.%s < 0:", t.Field)
		case t.Kind == Set, t.Kind == Handle:
			continue // any mask, any handle
		case len(t.Values) > 0:
			p.line("case t.%s > %d:", t.Field, len(t.Values)-1)
		default: // narrow makes 255 of every word that does not fit
			p.line("case t.%s == unfit:", t.Field)
		}
		p.line("return outOfRange(%q, uint64(t.%s), %q)", t.Name, t.Field, t.Takes)
	}
	p.line("}\nreturn nil\n}\n")
}

// renderSame makes the comparison of the terms of neighbours.
func renderSame(p *page) {
	p.line("// Same reports whether two requests have the same terms. It is asked for each request of a call, where " +
		"a")
	p.line("// comparison of whole structs is a call into the runtime.")
	p.line("func (t *Terms) Same(other *Terms) bool {")
	var list []string
	for _, t := range Terms {
		list = append(list, "t."+t.Field+" == other."+t.Field)
	}
	p.line("return %s\n}\n", strings.Join(list, " &&\n"))
}

// renderPacked makes the form in which requests cross the border: a word of 64 bits for each operand and term.
func renderPacked(p *page) {
	p.line("// Packed are the terms of a request as they cross the border: a word each, 0 for the default.")
	p.line("type Packed struct {")
	for _, t := range Terms {
		p.line("%s uint64", camel(t.Name))
	}
	p.line("}\n")
	p.line("// Terms returns the terms in the core's form. A word that does not fit becomes one that Check refuses.")
	p.line("func (p Packed) Terms() Terms {\nreturn Terms{")
	for _, t := range Terms {
		word := "p." + camel(t.Name)
		if !t.wide() {
			word = "narrow(" + word + ")"
		}
		if t.Go != "uint8" && t.Go != "uint64" {
			word = t.Go + "(" + word + ")"
		}
		p.line("%s: %s,", t.Field, word)
	}
	p.line("}\n}\n")
	p.line("// Record is one packed request.\ntype Record struct {")
	for _, o := range Operands {
		p.line("%s uint64 // %s", o.Field, o.Help)
	}
	p.line("Packed\n}\n")
	p.line("// PackedNote is a notification and a trace in the caller's memory; notify is 0 for a trace alone.")
	p.line("type PackedNote struct {")
	for _, w := range note {
		p.line("%s uint64", camel(w))
	}
	p.line("}")
}

// renderBlocks makes the argument blocks that package pybind lays over Python's memory.
func renderBlocks() ([]byte, error) {
	p := &page{}
	p.line("// %s\n\npackage pybind\n", origin)
	p.line("import (\n\"unsafe\"\n\n%q\n%q\n)\n", modulePath+"gocore/mem", modulePath+"gocore/request")
	p.line("// recordsAt views n packed requests at an address of the caller's memory.")
	p.line("func recordsAt(address uint64, n int) []request.Record {")
	p.line("return unsafe.Slice((*request.Record)(mem.Pointer(uintptr(address))), n)\n}\n")
	p.line("// packedAt views packed terms.")
	p.line("func packedAt(address uint64) *request.Packed {")
	p.line("return (*request.Packed)(mem.Pointer(uintptr(address)))\n}\n")
	p.line("// packedNoteAt views a notification.")
	p.line("func packedNoteAt(address uint64) *request.PackedNote {")
	p.line("return (*request.PackedNote)(mem.Pointer(uintptr(address)))\n}\n")
	p.line("// stridedWords are a sequence of integers in Python's memory. Code is the size of an item, plus 16 if " +
		"the items")
	p.line("// are unsigned.")
	p.line("type stridedWords struct {")
	for _, w := range strided {
		p.line("%s uint64", camel(w))
	}
	p.line("}\n")
	p.line("// stridedAt views n sequences at an address of Python's memory.")
	p.line("func stridedAt(address uint64, n int) []stridedWords {")
	p.line("return unsafe.Slice((*stridedWords)(mem.Pointer(uintptr(address))), n)\n}\n")
	for _, b := range Blocks {
		p.line("// %sBlock is the argument block of %s.\ntype %sBlock struct {\nrequest.Packed", b.Name, camel(b.Name),
			b.Name)
		for _, w := range b.Words {
			kind := "uint64"
			if w.Type != "" {
				kind = w.Type + "Words"
			}
			p.line("%s %s", camel(w.Name), kind)
		}
		p.line("}\n")
		p.line("// %sBlockAt views the block at an address of Python's memory.", b.Name)
		p.line("func %sBlockAt(address uint64) *%sBlock {\nreturn (*%sBlock)(mem.Pointer(uintptr(address)))\n}\n",
			b.Name, b.Name, b.Name)
	}
	return p.gofmt()
}
