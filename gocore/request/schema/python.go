package schema

import (
	"slices"
	"strings"
)

// renderPython makes tent/_abi.py.
func renderPython() ([]byte, error) {
	p := &page{}
	p.line(`"""The numbers that cross the border to the engine: terms, columns of packed requests, argument blocks.`)
	p.line("\n%s\n\"\"\"\n", origin)
	p.line("from __future__ import annotations\n\nimport operator\nfrom array import array\n" +
		"from collections.abc import Iterable\nfrom typing import Any, Final\n")
	p.line("from ._text import shown\nfrom ._transports import HINTS")
	p.line("from .enums import PRIO_HIGH, IntentType, OpCode, TransportType")
	p.line("from .errors import InvalidArgumentError\nfrom .gpu_stream import handle\n")
	renderTables(p)
	renderPackers(p)
	renderColumns(p)
	renderFields(p)
	return p.text()
}

func tupleOf(n int) string { return "tuple[" + strings.Repeat("int, ", n-1) + "int]" }

func renderTables(p *page) {
	all := Terms
	p.line("Terms = %s", tupleOf(len(all)))
	p.line("Strided = %s  # %s: a sequence of integers", tupleOf(len(strided)), strings.Join(strided, ", "))
	p.line("# %s\nNote = %s\n", strings.Join(note, ", "), tupleOf(len(note)))
	p.line("RECORD_WORDS: Final = %d  # of 64 bits, in one packed request\n", len(Operands)+len(all))
	p.line("COLUMNS: Final = (  # of a packed request, in order")
	for _, o := range Operands {
		p.line("    %q,", o.Name)
	}
	for _, t := range all {
		p.line("    %q,", t.Name)
	}
	p.line(")\n\nDOCS: Final = {  # by column")
	for _, o := range Operands {
		p.line("    %q: %q,", o.Name, sentence(o.Help))
	}
	for _, t := range all {
		p.line("    %q: %q,", t.Name, sentence(t.Help))
	}
	p.line("}\n\nTAKES: Final = {  # by term: the values that it takes, for errors")
	for _, t := range all {
		takes := strings.ReplaceAll(t.Takes, "PRIO_", "tent.PRIO_") // as a program writes them
		p.line("    %q: %s,", t.Name, python(takes))
	}
	p.line("}\n\nMEANING: Final = {  # of the keywords on objects")
	for _, t := range all {
		if t.Keyword != "" {
			p.line("    %q: %s,", t.Keyword, python(t.Says))
		}
	}
	p.line("}\n\nWORDS: Final[dict[str, dict[str | None, int]]] = {  # terms that are said as a word")
	for _, t := range all {
		if t.Kind != Word {
			continue
		}
		var values []string
		for i, v := range t.Values {
			word := `"` + strings.ToLower(v) + `"`
			if i == 0 {
				word = "None"
			}
			values = append(values, word+": "+string(rune('0'+i)))
		}
		p.line("    %q: {%s},", t.Name, strings.Join(values, ", "))
	}
	p.line("}")
	p.line("_SAID: Final = {name: {number: word for word, number in words.items()} for name, words in " +
		"WORDS.items()}\n\n")
}

// python quotes a text that may hold double quotes.
func python(text string) string {
	if strings.Contains(text, `"`) {
		return "'" + text + "'"
	}
	return `"` + text + `"`
}

const wordNumber = `def number(name: str, word: Any) -> int:
    """The number of a term that is said as a word or None; InvalidArgumentError if there is no such word."""
    try:
        return WORDS[name][word]
    except (KeyError, TypeError):
        known = " or ".join(f'"{known}"' if known else "None" for known in reversed(WORDS[name]))
        raise InvalidArgumentError(f"{name} is {shown(word)}: it must be {known}") from None


def name_number(term: str, name: str) -> int:
    """The number of a name: its 64-bit FNV-1a hash in UTF-8, 0 for the empty name."""
    if not isinstance(name, str):
        raise InvalidArgumentError(f"{term} is {shown(name)}: it must be a text")
    number = 0xCBF29CE484222325 if name else 0
    for byte in name.encode(errors="surrogatepass"):
        number = (number ^ byte) * 0x100000001B3 & 0xFFFFFFFFFFFFFFFF
    return number


def mask(term: str, names: int | str | Iterable[str]) -> int:
    """The bits of the transports that are named; a mask stays as it is."""
    if hasattr(type(names), "__index__"):
        return operator.index(names)  # type: ignore[arg-type]
    bits = 0
    try:
        for name in (names,) if isinstance(names, str) else names:  # type: ignore[union-attr]
            bits |= 1 << (HINTS[name.lower()] & 63)
    except (AttributeError, KeyError, TypeError):
        known = ", ".join(sorted(set(HINTS) - {"unspec"}))
        raise InvalidArgumentError(
            f"{term} is {shown(names)}: it must be names of transports", hint=f"known: {known}"
        ) from None
    return bits


def wrong(terms: Terms) -> InvalidArgumentError:
    """Why terms do not fit into words: the first one that is not an integer of 64 bits, not negative."""
    for name, value in zip(TAKES, terms, strict=True):
        if not hasattr(type(value), "__index__") or not 0 <= value < 1 << 64:
            return InvalidArgumentError(f"{name} is {shown(value)}: it must be {TAKES[name]}")
    return InvalidArgumentError("an operand is not an integer of 64 bits, not negative")

`

func renderPackers(p *page) {
	p.line("%s", wordNumber)
	p.line("def terms(")
	for i, t := range Terms {
		if i == 0 {
			p.line("    %s: int,", t.Name)
			continue
		}
		p.line("    %s: int = 0,", t.Name)
	}
	p.line(") -> Terms:")
	p.line("    \"\"\"The terms of a call, in the order in which the engine reads them.\"\"\"")
	p.line("    return (") // ruff keeps a line for each term behind the last comma, so a new one makes no line too long
	for _, t := range Terms {
		p.line("        %s,", t.Name)
	}
	p.line("    )\n\n")
	p.line("def packed(terms: Terms) -> array[int]:")
	p.line("    \"\"\"The terms alone. It must live until the call that reads it has returned.\"\"\"")
	p.line("    words = terms")
	renderArray(p)

	var arguments []string
	for _, o := range Operands {
		arguments = append(arguments, o.Name)
	}
	p.line("def record(\n    terms: Terms, %s\n) -> array[int]:", strings.Join(arguments, ": int, ")+": int")
	p.line("    \"\"\"One packed request. It must live until the call that reads it has returned.\"\"\"")
	p.line("    words = (%s, *terms)", strings.Join(arguments, ", "))
	renderArray(p)
	for _, b := range Blocks {
		renderBlockPacker(p, &b)
	}
}

func renderBlockPacker(p *page, b *Block) {
	p.line("def %s_block(\n    terms: Terms,", b.Name)
	var words []string
	for _, w := range b.Words {
		kind := map[string]string{"": "int", "strided": "Strided"}[w.Type]
		p.line("    %s: %s,", w.Name, kind)
		if w.Type != "" {
			w.Name = "*" + w.Name
		}
		words = append(words, w.Name)
	}
	p.line(") -> array[int]:")
	p.line("    \"\"\"The argument block of %s. It must live until the call that reads it has returned.\"\"\"", b.Name)
	p.line("    words = (\n        *terms,")
	for _, w := range words {
		p.line("        %s,", w)
	}
	p.line("    )")
	renderArray(p)
}

// renderArray ends a packer: the words become an array, or an error that names the wrong one.
func renderArray(p *page) {
	p.line("    try:\n        return array(\"Q\", words)")
	p.line("    except (OverflowError, TypeError):\n        raise wrong(terms) from None\n\n")
}

// renderColumns makes the typed names of the columns of a RequestArray.
func renderColumns(p *page) {
	p.line("class Columns:")
	p.line("    \"\"\"The columns of a RequestArray: writable views, one number of 64 bits for each request.\"\"\"\n")
	p.line("    __slots__ = ()\n")
	for _, o := range Operands {
		if o.Python != "" {
			p.line("    %s: Any", o.Name)
		}
	}
	for _, t := range Terms {
		p.line("    %s: Any", t.Name)
	}
	p.line("\n")
}

// slot is the attribute in which a Request keeps a term as a number.
func (t *Term) slot() string {
	if t.Kind == Word || t.Kind == Named || t.Kind == Set || t.Kind == Handle {
		return "_" + t.Name
	}
	return t.Name
}

// renderFields makes the constructor and the properties of tent.Request.
func renderFields(p *page) {
	slots, columns := []string{"trace"}, []string(nil)
	for _, o := range Operands {
		if o.Python == "" {
			columns = append(columns, "_"+o.Name)
			continue
		}
		slots, columns = append(slots, o.Name), append(columns, o.Name)
	}
	for _, t := range Terms {
		slots, columns = append(slots, t.slot()), append(columns, t.slot())
		if t.Kind == Named {
			slots = append(slots, "_said_"+t.Name)
		}
	}
	slices.Sort(slots)
	p.line("class Fields:")
	p.line("    \"\"\"The operands and terms of a Request, with Mooncake's names and positional order.\"\"\"\n")
	p.line("    __slots__ = (")
	for _, s := range slots {
		p.line("        %q,", s)
	}
	p.line("    )\n")
	for _, o := range Operands {
		if o.Python == "" {
			p.line("    _%s = 0", o.Name)
		}
	}
	p.line("\n    def __init__(\n        self,")
	var body []string
	inOrder(func(t *Term) {
		p.line("        %s: %s = %s,", t.Name, t.Python, t.Default)
		switch t.Kind {
		case Named:
			body = append(body, "self."+t.slot()+` = name_number("`+t.Name+`", `+t.Name+") if "+t.Name+" else 0",
				"self._said_"+t.Name+" = "+t.Name)
		case Set:
			body = append(body, "self."+t.slot()+` = mask("`+t.Name+`", `+t.Name+") if "+t.Name+" else 0")
		case Handle:
			body = append(body, "self."+t.slot()+` = 0 if `+t.Name+` is None else handle(`+t.Name+")")
		case Word:
			body = append(body, "self."+t.slot()+` = 0 if `+t.Name+` is None else number("`+t.Name+`", `+t.Name+")")
		default:
			body = append(body, "self."+t.Name+" = "+t.Name)
		}
	}, func(o *Operand) {
		p.line("        %s: int = %s,", o.Name, o.Python)
		body = append(body, "self."+o.Name+" = "+o.Name)
	})
	p.line("        trace: str | None = None,\n    ) -> None:")
	for _, line := range append(body, "self.trace = trace") {
		p.line("        %s", line)
	}
	for _, t := range Terms {
		renderProperty(p, &t)
	}
	p.line("\n\nPACKED: Final = (  # attributes of Fields, in the order of COLUMNS")
	for _, c := range columns {
		p.line("    %q,", c)
	}
	p.line(")")
}

// inOrder visits terms and operands in the order of the constructor: the first term, the operands, the other terms.
func inOrder(term func(*Term), operand func(*Operand)) {
	for i := range Terms {
		term(&Terms[i])
		for j := range Operands {
			if i == 0 && Operands[j].Python != "" {
				operand(&Operands[j])
			}
		}
	}
}

func renderProperty(p *page, t *Term) {
	switch t.Kind {
	case Named:
		p.line("\n    @property\n    def %s(self) -> %s:", t.Name, t.Python)
		p.line("        \"\"\"%s\"\"\"\n        return self._said_%s", sentence(t.Help), t.Name)
		p.line("\n    @%s.setter\n    def %s(self, name: %s) -> None:", t.Name, t.Name, t.Python)
		p.line("        self.%s = name_number(%q, name)\n        self._said_%s = name", t.slot(), t.Name, t.Name)
	case Set:
		p.line("\n    @property\n    def %s(self) -> int:", t.Name)
		p.line("        \"\"\"%s\"\"\"\n        return self.%s", sentence(t.Help), t.slot())
		p.line("\n    @%s.setter\n    def %s(self, names: %s) -> None:", t.Name, t.Name, t.Python)
		p.line("        self.%s = mask(%q, names)", t.slot(), t.Name)
	case Handle:
		p.line("\n    @property\n    def %s(self) -> int:", t.Name)
		p.line("        \"\"\"%s\"\"\"\n        return self.%s", sentence(t.Help), t.slot())
		p.line("\n    @%s.setter\n    def %s(self, given: object) -> None:", t.Name, t.Name)
		p.line("        self.%s = 0 if given is None else handle(given)", t.slot())
	case Word:
		p.line("\n    @property\n    def %s(self) -> %s:", t.Name, t.Python)
		p.line("        \"\"\"%s\"\"\"\n        return _SAID[%q][self.%s]", sentence(t.Help), t.Name, t.slot())
		p.line("\n    @%s.setter\n    def %s(self, word: %s) -> None:", t.Name, t.Name, t.Python)
		p.line("        self.%s = number(%q, word)", t.slot(), t.Name)
	}
}
