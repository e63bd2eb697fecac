package config

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/tent-engine/tent/gocore/errs"
)

// Origins of values; a file's path or the variable's follows where there is one.
const (
	OriginDefault  = "default"
	OriginArgument = "argument"
)

// variables hold trees, from the weakest to the strongest. Those of variables.txt come between them, and weak ones
// before them, as upstream has it.
var variables = [...]string{"MC_TENT_CONF", "TENT_CONF"}

// faultsVariable holds the text of one setting.
const faultsVariable = "TENT_FAULTS"

// fileBytesMax bounds the size of a settings file: a path that names a device by mistake must not fill memory.
const fileBytesMax = 4 << 20

// layer is one source of settings.
type layer struct {
	origin   string
	document map[string]any
}

// Sources are the settings as somebody gave them, the weakest first. They are read once, since a pipe gives its bytes
// once; for one that a variable names see readVariable.
type Sources []layer

// Read reads the environment, as Options.Env does, and arguments. An argument is a map[string]any, JSON as []byte, a
// string that is JSON (begins with "{") or else a path, or nil; later ones win.
func Read(env func(name string) string, arguments ...any) (Sources, error) {
	var layers Sources
	if env != nil && strings.TrimSpace(env(faultsVariable)) != "" {
		layers = append(layers, layer{"environment " + faultsVariable,
			map[string]any{"allow_faults": true, "faults": env(faultsVariable)}})
	}
	for i, name := range variables {
		if env != nil {
			layers = append(layers, layersOfUpstream(env, i == 0)...)
		}
		if env == nil || env(name) == "" {
			continue
		}
		read := func(path string) ([]byte, error) { return readVariable(name, path) }
		l, err := readText(env(name), "environment "+name, "environment "+name+"=", read)
		if err != nil {
			return nil, err
		}
		layers = append(layers, l)
	}
	for _, a := range arguments {
		l, err := readArgument(a)
		if err != nil {
			return nil, err
		}
		layers = append(layers, l)
	}
	return layers, nil
}

func readArgument(a any) (layer, error) {
	switch a := a.(type) {
	case nil:
		return layer{origin: OriginArgument}, nil
	case map[string]any:
		return layer{OriginArgument, a}, nil
	case []byte:
		return parse(OriginArgument, a)
	case string:
		return readText(a, OriginArgument, OriginArgument+" ", readPath)
	}
	return layer{}, errs.New(errs.InvalidArgument, "config", "settings of type %T: they are a map, JSON text or a path",
		a)
}

// readText reads JSON or, by read, the file that text names; the origin of a file has its path behind filePrefix.
func readText(text, inline, filePrefix string, read func(path string) ([]byte, error)) (layer, error) {
	if strings.HasPrefix(strings.TrimSpace(text), "{") {
		return parse(inline, []byte(text))
	}
	origin := filePrefix + text
	data, err := read(text)
	if err != nil {
		e := errs.Wrap(errs.InvalidArgument, "config", err)
		e.Cause = fmt.Sprintf("%s: cannot read the settings file %q: %v", inline, text, reason(err))
		return layer{}, e.WithHint("settings are a path or JSON text that begins with {")
	}
	return parse(origin, data)
}

// readLimit bounds the wait for the end of a file that another program writes meanwhile.
const readLimit = 10 * time.Second

// readPath reads a settings file, of at most 4 MiB. It may be a pipe, as that of <(...) in a shell, and then has 10
// seconds to its end.
func readPath(path string) ([]byte, error) {
	data, _, err := readFile(path, readLimit)
	return data, err
}

// Document reads a settings file as Read does, and returns its object. An error names the file and the line.
func Document(path string) (map[string]any, error) {
	data, err := readPath(path)
	if err != nil {
		return nil, err
	}
	l, err := parse(path, data)
	return l.document, err
}

// Value reads the text of a setting: a value in JSON as such, anything else as the text that it is.
func Value(text string) (any, error) {
	data := []byte(text)
	if !json.Valid(data) {
		return text, nil
	}
	if key := repeatedKey(json.NewDecoder(bytes.NewReader(data)), ""); key != "" {
		return nil, errs.New(errs.InvalidArgument, "config", "%s is given twice in one object", key)
	}
	decoder := json.NewDecoder(bytes.NewReader(data))
	decoder.UseNumber() // integers of 64 bits stay exact
	var value any
	err := decoder.Decode(&value)
	return value, err
}

// pipes are those that variables named, with their texts. The second engine of a process finds the pipe of <(...)
// empty. One that gives a text again, as a FIFO with another writer, is read anew.
var pipes struct {
	sync.Mutex // also while one is read: of two readers at a time each would have a part
	named      map[string]pipe
}

type pipe struct {
	about os.FileInfo
	text  []byte
}

// readVariable reads the settings file that a variable names.
func readVariable(name, path string) ([]byte, error) {
	pipes.Lock()
	defer pipes.Unlock()
	data, about, err := readFile(path, readLimit)
	if about == nil || about.Mode()&os.ModeNamedPipe == 0 {
		return data, err
	}
	switch before, known := pipes.named[name]; {
	case err == nil:
		if pipes.named == nil {
			pipes.named = make(map[string]pipe)
		}
		pipes.named[name] = pipe{about, data}
	case errors.Is(err, errEmptyPipe) && known && os.SameFile(before.about, about):
		return before.text, nil
	}
	return data, err
}

var errEmptyPipe = errors.New("it is a pipe, and nobody writes into it; or it was read already, " +
	"since that of <(...) gives its text once")

// readFile also returns the facts about the file that it has read, nil where they are not known.
func readFile(path string, limit time.Duration) ([]byte, os.FileInfo, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0) // a FIFO would block until somebody writes
	if err != nil {
		return nil, nil, err
	}
	defer func() { _ = f.Close() }()             // only read: nothing can be lost
	_ = f.SetReadDeadline(time.Now().Add(limit)) // a file on a disk has no deadline, and needs none
	data, err := io.ReadAll(io.LimitReader(f, fileBytesMax+1))
	about, unknown := f.Stat()
	switch {
	case errors.Is(err, os.ErrDeadlineExceeded):
		err = fmt.Errorf("it has not ended within %v", limit)
	case err == nil && len(data) > fileBytesMax:
		err = fmt.Errorf("it is larger than %d MiB", fileBytesMax>>20)
	case err == nil && len(data) == 0 && unknown == nil && about.Mode()&os.ModeNamedPipe != 0:
		err = errEmptyPipe
	}
	return data, about, err
}

// reason drops operation and path, which the message has already.
func reason(err error) error {
	if p := (*os.PathError)(nil); errors.As(err, &p) {
		return p.Err
	}
	return err
}

// parse decodes one JSON object; an error names the line that cannot be read.
func parse(origin string, data []byte) (layer, error) {
	decoder := json.NewDecoder(bytes.NewReader(data))
	decoder.UseNumber() // integers of 64 bits stay exact
	l := layer{origin: origin}
	err := decoder.Decode(&l.document)
	if err == nil {
		if _, more := decoder.Token(); more == io.EOF {
			again := json.NewDecoder(bytes.NewReader(data))
			if key := repeatedKey(again, ""); key != "" {
				return layer{}, errs.New(errs.InvalidArgument, "config", "%s: line %d: %s is given twice in one object",
					origin, lineOf(data, again.InputOffset()), key)
			}
			return l, nil
		}
		err = errors.New("something follows the object")
	}
	at := decoder.InputOffset()
	if s := (*json.SyntaxError)(nil); errors.As(err, &s) {
		at = s.Offset
	}
	e := errs.Wrap(errs.InvalidArgument, "config", err)
	e.Cause = fmt.Sprintf("%s: line %d is not JSON: %v", origin, lineOf(data, at), err)
	return layer{}, e
}

func lineOf(data []byte, at int64) int {
	return 1 + bytes.Count(data[:min(at, int64(len(data)))], []byte("\n"))
}

// repeatedKey reads one value, and returns the path of the first key that an object in it has twice, "" for none.
// encoding/json would keep the last. The text was decoded before, so there are no errors.
func repeatedKey(d *json.Decoder, prefix string) string {
	token, _ := d.Token()
	begin, nested := token.(json.Delim)
	if !nested {
		return ""
	}
	keys := map[string]bool{}
	for n := 0; d.More(); n++ {
		name := strconv.Itoa(n)
		if begin == '{' {
			key, _ := d.Token()
			if name, _ = key.(string); keys[name] {
				return prefix + name
			}
			keys[name] = true
		}
		if path := repeatedKey(d, prefix+name+"/"); path != "" {
			return path
		}
	}
	_, _ = d.Token() // the end
	return ""
}

// apply takes one layer over the values that are there.
func (c *Config) apply(l layer) error {
	given := map[string]any{}
	if err := c.flatten("", l.document, given); err != nil {
		return errs.Wrap(errs.InvalidArgument, "config", fmt.Errorf("%s: %w", l.origin, err))
	}
	for _, key := range slices.Sorted(maps.Keys(given)) {
		i := c.index[key]
		v, err := c.settings[i].Takes.convert(given[key])
		if err != nil {
			return errs.Wrap(errs.InvalidArgument, "config", fmt.Errorf("%s: %s: %w", l.origin, key, err))
		}
		c.values[i], c.origins[i] = v, l.origin
	}
	return nil
}

// flatten collects a document's values by key. A null means "not given". Keys come in order, so that of several
// mistakes always the same one is reported.
func (c *Config) flatten(prefix string, document map[string]any, given map[string]any) error {
	for _, name := range slices.Sorted(maps.Keys(document)) {
		v, key := document[name], c.canonical(prefix+name)
		if _, known := c.index[key]; known {
			if _, twice := given[key]; twice {
				return fmt.Errorf("%s is given twice, as a path and as an object, or under two names", key)
			}
			if v != nil {
				given[key] = v
			}
			continue
		}
		object, isObject := v.(map[string]any)
		switch {
		case key == modeKey:
			return errModeKey
		case isObject && (len(object) > 0 || c.isBranch(key)):
			if err := c.flatten(key+"/", object, given); err != nil {
				return err
			}
		case v != nil && c.isBranch(key):
			return fmt.Errorf("%s: %s has the wrong type: it takes an object with keys such as %q", key, show(v),
				c.nearest(key))
		case v != nil || !c.isBranch(key):
			near := c.nearest(key)
			return fmt.Errorf("unknown setting %s; the nearest known setting is %q, which takes %s%s",
				show(key), near, c.settings[c.index[near]].Takes, c.alike(key, near))
		}
	}
	return nil
}

// isBranch reports whether known keys are below key.
func (c *Config) isBranch(key string) bool {
	return slices.ContainsFunc(c.settings, func(s Setting) bool { return strings.HasPrefix(s.Key, key+"/") })
}
