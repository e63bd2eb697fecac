package schema

import (
	"fmt"
	"strings"
)

// firstOptions is how many terms stand at the begin of tent_submit_options, where programs know them; later ones are
// appended.
const firstOptions = 2

// beyondC are the terms that upstream's tent_request has no field for; names, masks and handles come behind numbers:
// programs know that order.
func beyondC() (list []Term) {
	var names []Term
	for _, t := range Terms {
		switch {
		case t.InC:
		case t.Kind == Named, t.Kind == Set, t.Kind == Handle:
			names = append(names, t)
		default:
			list = append(list, t)
		}
	}
	return append(list, names...)
}

// fieldsC are the fields of tent_request in upstream's order: the first term, the operands, the other terms.
func fieldsC(term func(*Term), operand func(*Operand)) {
	for i, t := range Terms {
		if t.InC {
			term(&t)
		}
		for j := range Operands {
			if i == 0 && Operands[j].C != "" {
				operand(&Operands[j])
			}
		}
	}
}

// declareC is the field of a struct.
func (t *Term) declareC() string {
	switch t.Kind {
	case Instant, Set, Handle:
		return "uint64_t " + t.Name
	case Named:
		return "const char *" + t.Name
	}
	return "int " + t.Name
}

// zeroC is the default of the field.
func (t *Term) zeroC() string {
	if t.Kind == Named {
		return "nullptr"
	}
	return "0"
}

// helpC returns a field's comment.
func (t *Term) helpC() string {
	var numbers []string
	for i, v := range t.Values {
		if t.CPrefix == "" {
			numbers = append(numbers, fmt.Sprintf("%d %s", i, strings.ToLower(v)))
		}
	}
	switch {
	case numbers != nil:
		return strings.Join(numbers, ", ")
	case len(t.Values) > 0:
		return t.CPrefix + "*: " + t.Help
	case t.Unit != "":
		return t.Unit + ": " + t.Help
	}
	return t.Help
}

// renderHeader makes the part of the C header that is about requests.
func renderHeader() ([]byte, error) {
	p := &page{}
	p.line("/* %s\n *\n * Requests and their terms. transfer_engine.h includes this file. */", origin)
	p.line("#ifndef TENT_REQUEST_H\n#define TENT_REQUEST_H\n\n#include <stddef.h>\n#include <stdint.h>\n")
	p.line("typedef uint64_t tent_segment_id_t;\n")
	p.line("#define TENT_LOCAL_SEGMENT_ID 0ull /* the engine's own memory, always open */\n")
	for _, t := range Terms {
		if t.CPrefix == "" {
			continue
		}
		p.line("enum {")
		for i, v := range t.Values {
			p.line("\t%s%s = %d%s", t.CPrefix, v, i, comma(i, len(t.Values)))
		}
		p.line("};\n")
	}
	renderStructs(p)
	renderRequestCC(p)
	p.line("#endif /* TENT_REQUEST_H */")
	return p.text()
}

func comma(i, n int) string {
	if i < n-1 {
		return ","
	}
	return ""
}

func renderStructs(p *page) {
	p.line("/* One READ (remote to local) or WRITE (local to remote). Zero it before filling it in.")
	p.line(" * The layout is upstream's. */")
	p.line("struct tent_request {")
	fieldsC(
		func(t *Term) { p.line("\t%s; /* %s */", t.declareC(), t.helpC()) },
		func(o *Operand) { p.line("\t%s%s; /* %s */", o.C, o.Name, o.Help) })
	p.line("};\ntypedef struct tent_request tent_request_t;\n")

	p.line("/* The terms of one request that tent_request has no field for; 0 is the default of each. */")
	p.line("struct tent_request_terms {")
	for _, t := range beyondC() {
		p.line("\t%s; /* %s */", t.declareC(), t.helpC())
	}
	p.line("};\ntypedef struct tent_request_terms tent_request_terms_t;\n")

	p.line("/* The options of tent_submit_ex, for all requests of a call. Zero it before filling it in. */")
	p.line("struct tent_submit_options {")
	for i, t := range beyondC() {
		if i == firstOptions {
			p.line("\tint notify; /* not 0: send name and message after the last byte */")
			p.line("\tconst char *name;\n\tconst void *message;\n\tsize_t message_bytes;")
			p.line("\t/* NULL, or one for each request: a field that is not 0 there holds instead of the one here */")
			p.line("\tconst tent_request_terms_t *terms;")
		}
		p.line("\t%s; /* of every request */", t.declareC())
	}
	p.line("\tconst char *trace; /* the caller's name for the call, at most 64 bytes; NULL for none */")
	p.line("};\ntypedef struct tent_submit_options tent_submit_options_t;\n")
}

// renderRequestCC makes the C++ class Request and its conversions.
func renderRequestCC(p *page) {
	p.line("#if defined(__cplusplus) && !defined(TENT_TYPES_ONLY)\nnamespace mooncake {\nnamespace tent {\n")
	p.line("using SegmentID = uint64_t;\n\nconstexpr SegmentID LOCAL_SEGMENT_ID = TENT_LOCAL_SEGMENT_ID;")
	for _, t := range Terms {
		if t.Kind != Number || t.CPrefix != "" || len(t.Values) == 0 {
			continue
		}
		for i, v := range t.Values {
			p.line("constexpr int PRIO_%s = %d;", v, i)
		}
	}
	p.line("\nstruct Request {")
	var list, request, terms []string
	fieldsC(func(t *Term) {
		if t.Name == "opcode" {
			p.line("\tenum class OpCode { READ = OPCODE_READ, WRITE = OPCODE_WRITE };\n\tOpCode opcode = OpCode::READ;")
			request = append(request, "static_cast<int>(opcode)")
			return
		}
		list = append(list, t.Name)
		request = append(request, t.Name)
	}, func(o *Operand) {
		zero := map[string]string{"void *": "nullptr", "tent_segment_id_t ": "LOCAL_SEGMENT_ID"}[o.C]
		if zero == "" {
			zero = "0"
		}
		p.line("\t%s%s = %s;", strings.Replace(o.C, "tent_segment_id_t", "SegmentID", 1), o.Name, zero)
		request = append(request, o.Name)
	})
	for _, name := range list {
		p.line("\tint %s = 0;", name)
	}
	for _, t := range beyondC() {
		p.line("\t%s = %s;", t.declareC(), t.zeroC())
		terms = append(terms, t.Name)
	}
	p.line("\tconst char *trace = nullptr; /* %s */", traceSays)
	p.line("\n\ttent_request_t request() const {\n\t\treturn {%s};\n\t}", strings.Join(request, ", "))
	p.line("\ttent_request_terms_t terms() const { return {%s}; }\n};\n", strings.Join(terms, ", "))
	p.line("} /* namespace tent */\n} /* namespace mooncake */\n#endif\n")
}

// renderCgo makes the packing of C's structs.
func renderCgo() ([]byte, error) {
	p := &page{}
	p.line("// %s\n\npackage main\n", origin)
	p.line("/*\n#include \"include/tent/transfer_engine.h\"\n*/\nimport \"C\"\n")
	p.line("import (\n\"cmp\"\n\n%q\n)\n", modulePath+"gocore/request")
	p.line("// record packs a request of C; own are its own terms, all those of the whole call.")
	p.line("func record(r *C.tent_request_t, own *C.tent_request_terms_t, all *C.tent_submit_options_t)" +
		" request.Record {")
	p.line("return request.Record{")
	for _, o := range Operands {
		switch o.C {
		case "":
		case "void *":
			p.line("%s: address(r.%s),", o.Field, o.Name)
		default:
			p.line("%s: uint64(r.%s),", o.Field, o.Name)
		}
	}
	p.line("Packed: request.Packed{")
	for _, t := range Terms {
		from := "r." + t.Name
		if !t.InC {
			from = "cmp.Or(own." + t.Name + ", all." + t.Name + ")"
		}
		convert := "uint64"
		if t.Kind == Named {
			convert = "nameID"
		}
		p.line("%s: %s(%s),", camel(t.Name), convert, from)
	}
	p.line("},\n}\n}")
	return p.gofmt()
}
