// Package schema declares the terms of a request, once: Terms is the table. Each face of tent reads a file that is made
// from it by `go generate ./gocore/request`, and a test fails while one of these files differs from the table:
//
//	gocore/request/terms.go                the Go struct, its check, and the packed form that crosses the border
//	pybind/abi.go                          the argument blocks of calls that move pages and ranges
//	pybind/capi/abi.go                     from C's structs to the packed form
//	pybind/capi/include/tent/request.h     C's structs and constants, and the C++ class Request
//	tent/_abi.py                           columns, numbers, limits and packers, typed; the constructor of Request
//	docs/reference/requests.md             the page for people
//
// A new term is one entry here, its keyword in the public signatures of tent.Engine, and its meaning in the core.
package schema

// Term is one term of a request.
type Term struct {
	Field   string   // of request.Terms
	Go      string   // type of Field
	Name    string   // in Request, RequestArray and C: upstream's name where upstream has the term
	Keyword string   // of the calls on objects; empty where the call's own name says it
	Kind    Kind     // how it is written
	Values  []string // of an enumeration, from 0 on; C's constants are CPrefix + value
	CPrefix string
	InC     bool   // a field of upstream's tent_request: its layout must not change
	Python  string // type of the constructor's argument
	Default string // of that argument, in Python
	Unit    string
	Takes   string // the values that it takes, for errors
	Help    string // one sentence, without the full stop
	Says    string // the meaning of the keyword to people; one line of their editor
}

// Kind is how a term is written where it is not a plain number.
type Kind uint8

// Kinds. On the packed faces every term is an unsigned number of 64 bits, and 0 is its default.
const (
	Number  Kind = iota // one of Values, or any number of a byte where there are none
	Word                // of objects: Python says it as a word or None, the packed faces as a number
	Instant             // nanoseconds on CLOCK_MONOTONIC, 64 bits; 0 is none
	Named               // Python and C say it as a name, the packed form as its 64-bit FNV-1a hash; 0 is no name
	Set                 // Python says it as names of transports; a mask: bit n modulo 64 for transport n; 0 is no limit
	Handle              // Python says it as a framework's object; a vendor's handle of 64 bits; 0 is none
)

// Terms are declared in the order of the constructor of tent.Request; opcode goes before the operands.
var Terms = []Term{
	{Field: "Op", Go: "transport.Op", Name: "opcode", Values: []string{"READ", "WRITE"}, CPrefix: "OPCODE_", InC: true,
		Python: "OpCode", Default: "OpCode.READ", Takes: "READ (0) or WRITE (1)",
		Help: "the direction: READ fetches from the peer, WRITE sends to it"},
	{Field: "Class", Go: "uint8", Name: "priority", Keyword: "priority", Values: []string{"HIGH", "MEDIUM", "LOW"},
		InC:    true,
		Python: "int", Default: "PRIO_HIGH", Takes: "PRIO_HIGH (0), PRIO_MEDIUM (1) or PRIO_LOW (2)",
		Help: "the class: a smaller number is served first wherever requests of several classes wait",
		Says: "PRIO_HIGH, PRIO_MEDIUM or PRIO_LOW: urgent bytes pass the others. None: the setting default_priority."},
	{Field: "Hint", Go: "uint8", Name: "transport_hint", Keyword: "hint", InC: true,
		Python: "TransportType", Default: "TransportType.UNSPEC", Takes: "the number of a transport",
		Help: "the transport that is tried first; 0 leaves the choice to the policy",
		Says: "The transport to try first, by name or TransportType; the others follow when it fails."},
	{Field: "Policy", Go: "uint64", Name: "policy_name", Keyword: "policy", Kind: Named,
		Python: "str", Default: `""`, Takes: "the name of a policy",
		Help: "the policy that counts, by its name; without one the first that matches",
		Says: "The name of the policy that counts, of those in the setting; empty: the first that matches."},
	{Field: "Deadline", Go: "clock.Time", Name: "deadline_ns", Keyword: "timeout", Kind: Instant,
		Python: "int", Default: "0", Unit: "ns on CLOCK_MONOTONIC", Takes: "below 2^63",
		Help: "the request ends as TIMEOUT when this instant passes; 0 is none",
		Says: `Seconds or "20ms" from this call on; then it ends as TIMEOUT, without a further byte. None: no limit.`},
	{Field: "Intent", Go: "Intent", Name: "intent_type", Keyword: "intent", CPrefix: "INTENT_",
		Values: []string{"UNSPEC", "FOREGROUND_GET", "BACKGROUND_PREFETCH", "MIGRATION", "CHECKPOINT",
			"WEIGHT_LOADING", "STAGING_INTERNAL"},
		Python: "IntentType", Default: "IntentType.UNSPEC", Takes: "the number of an IntentType",
		Help: "why the bytes move; a policy may choose routes by it",
		Says: "Why the bytes move, an IntentType; a policy may choose routes by it."},
	{Field: "Integrity", Go: "Integrity", Name: "integrity", Keyword: "integrity", Kind: Word, CPrefix: "INTEGRITY_",
		Values: []string{"NONE", "CRC32C"}, Python: "str | None", Default: "None", Takes: `"crc32c" (1) or None (0)`,
		Help: "a checksum of each slice, verified where it arrives; a slice that does not match is sent again",
		Says: `"crc32c": each slice carries a checksum, and one that changed on its way is sent again.`},
	{Field: "Durability", Go: "Durability", Name: "durability", Keyword: "durability", Kind: Word,
		CPrefix: "DURABILITY_",
		Values:  []string{"NONE", "DATA"}, Python: "str | None", Default: "None", Takes: `"data" (1) or None (0)`,
		Help: "for files: the batch ends when all that the request has written is on stable storage",
		Says: `"data", for files: it ends when all that it writes is on stable storage, as fdatasync promises.`},
	{Field: "Require", Go: "uint64", Name: "require", Keyword: "require", Kind: Set,
		Python: "int | str | Iterable[str]", Default: "0", Takes: "names of transports, or a mask of their numbers",
		Help: "the only transports that may carry it: bit n modulo 64 for the one of number n; 0 is any",
		Says: `The only transports that may carry it, by name, one or several; refused at once where none can.`},
	{Field: "Stream", Go: "uint64", Name: "stream", Keyword: "stream", Kind: Handle,
		Python: "object", Default: "None", Takes: "a stream of a device, or its handle",
		Help: "the stream of a device whose present work must be done before a byte moves; 0 is none",
		Says: "A torch.cuda.Stream, or what has __cuda_stream__: its work up to here is done before a byte moves."},
}

// Operand is a column of a packed request that is no term: where the bytes lie.
type Operand struct {
	Field, Name string
	C           string // type in tent_request; empty where C has no such field
	Python      string // default in the constructor of Request; empty where it has no such argument
	Help        string
}

// Operands stand before the terms in a packed request.
var Operands = []Operand{
	{"Source", "source", "void *", "0", "local address, registered or allocated, in either direction"},
	{"TargetID", "target_id", "tent_segment_id_t ", "0", "handle of the segment; 0 is the engine's own memory"},
	{"TargetOffset", "target_offset", "uint64_t ", "0",
		"an address of the peer; counts from 0 in a segment opened on one region or a file"},
	{"Length", "length", "uint64_t ", "0", "bytes"},
	{"TargetRegion", "target_region", "", "",
		"number of the region in which the offset counts; 0: as the segment was opened"},
}

// traceSays is the meaning of trace, which is a text of the whole call and so has no column.
const traceSays = "the caller's name for the call, at most 64 bytes; its requests bear the same, or none"

// Block is the argument block of one call: the terms, then these words.
type Block struct {
	Name  string // of the call, in lower case
	Words []Words
}

// Words are one or several 64-bit words of a block.
type Words struct {
	Name string // in Python; Go's is the same in its own spelling
	Type string // "" for one word, "strided" for a sequence of integers
}

// Blocks of the calls that take more than integers can say.
var Blocks = []Block{
	{"pages", []Words{{"builder", ""}, {"local_grid", ""}, {"remote_grid", ""}, {"n", ""}, {"src", "strided"},
		{"dst", "strided"}, {"note", ""}}},
	{"ranges", []Words{{"builder", ""}, {"local", ""}, {"local_bytes", ""}, {"target_id", ""}, {"target_region", ""},
		{"target_offset", ""}, {"remote_bytes", ""}, {"n", ""}, {"local_offsets", "strided"}, {"remote_offsets",
			"strided"},
		{"lengths", "strided"}, {"note", ""}}},
}

// strided are the words of a sequence of integers: code is the size of an item in bytes, plus 16 if it is unsigned.
var strided = []string{"address", "code", "stride"}

// note are the words of a notification and of the caller's name for the transfer. Without notify there is the name
// alone. Calls take their address, or 0 for neither.
var note = []string{"notify", "name_address", "name_bytes", "message_address", "message_bytes", "trace_address",
	"trace_bytes"}

// Files returns the text of every file that is made from the table, by its path from the root of the repository.
func Files() (map[string][]byte, error) {
	files := map[string][]byte{}
	for path, render := range map[string]func() ([]byte, error){
		"gocore/request/terms.go":            renderTerms,
		"pybind/abi.go":                      renderBlocks,
		"pybind/capi/abi.go":                 renderCgo,
		"pybind/capi/include/tent/request.h": renderHeader,
		"tent/_abi.py":                       renderPython,
		"docs/reference/requests.md":         renderPage,
	} {
		text, err := render()
		if err != nil {
			return nil, err
		}
		files[path] = text
	}
	return files, nil
}
