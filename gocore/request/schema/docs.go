package schema

import (
	"fmt"
	"strings"
)

// renderPage makes the reference page of requests.
func renderPage() ([]byte, error) {
	p := &page{}
	p.line("<!-- %s -->\n\n# Requests\n", origin)
	p.line("A request is one READ or WRITE. It has operands, which say where its bytes lie, and terms, which say " +
		"how they")
	p.line("travel. Every term works on every face: calls on objects, `tent.Request`, `tent.RequestArray`, C and " +
		"C++. A value")
	p.line("that a term does not take is an error at the call, before anything moves.\n")
	p.line("## Terms\n\n| term | on objects | takes | default | meaning |\n|---|---|---|---|---|")
	for _, t := range Terms {
		keyword := "the call's name"
		switch {
		case t.Keyword != "":
			keyword = "`" + t.Keyword + "=`"
		}
		otherwise := strings.ReplaceAll(t.Default, "|", "\\|")
		p.line("| `%s` | %s | %s | `%s` | %s |", t.Name, keyword, t.Takes, otherwise, sentence(t.Help))
	}
	p.line("\n`trace` belongs to the call: %s.", traceSays)
	p.line("`submit_transfer(batch, requests, trace=\"req-17\")` says it for a `RequestArray`.")
	p.line("\n## Operands\n\n| operand | meaning |\n|---|---|")
	for _, o := range Operands {
		p.line("| `%s` | %s |", o.Name, sentence(o.Help))
	}
	renderPlaces(p)
	return p.text()
}

// renderPlaces makes the table of where each face has a column.
func renderPlaces(p *page) {
	p.line("\n## Layout\n")
	p.line("A packed request, one row of a `RequestArray`, has %d words of 64 bits. On C each term of "+
		"`tent_request_terms` is also a",
		len(Operands)+len(Terms))
	p.line("field of `tent_submit_options`, where it holds for every request of the call.\n")
	p.line("| word | column | in C | numbers |\n|---|---|---|---|")
	n := 0
	for _, o := range Operands {
		where := "`tent_request`"
		if o.C == "" {
			where = "not there"
		}
		p.line("| %d | `%s` | %s | |", n, o.Name, where)
		n++
	}
	for _, t := range Terms {
		where := "`tent_request_terms`"
		if t.InC {
			where = "`tent_request`"
		}
		p.line("| %d | `%s` | %s | %s |", n, t.Name, where, numbers(&t))
		n++
	}
}

func numbers(t *Term) string {
	var list []string
	for i, v := range t.Values {
		list = append(list, fmt.Sprintf("%d %s%s", i, t.CPrefix, v))
	}
	if list == nil {
		return t.Unit
	}
	return strings.Join(list, ", ")
}
