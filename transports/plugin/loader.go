package plugin

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"

	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/transports/host/library"
)

// filesMax bounds the plug-ins of an engine.
const filesMax = 16

// Load opens the plug-ins of the setting "plugins": files, and folders of which each *.so is one, in the order of
// names. The transports of taken names are there already. One that cannot be used is a Factory too, and its Check says
// why: so the engine opens without it, and names it wherever it names transports. Each file is opened once a process.
func Load(paths []string, taken []string) []Factory {
	var list []Factory
	names := slices.Clone(taken)
	for _, file := range files(paths) {
		l := opened(file)
		if l.err == nil && l.api == nil {
			continue // it brings devices: see Platforms
		}
		if l.err == nil && slices.Contains(names, l.name) {
			l = &loaded{path: l.path, name: fallback(l.path),
				err: refused(l.path, "another transport is called %q", l.name)}
		}
		base := l.name
		for n := 2; slices.Contains(names, l.name); n++ {
			l = &loaded{path: l.path, name: fmt.Sprintf("%s-%d", base, n), err: l.err}
		}
		names = append(names, l.name)
		list = append(list, Factory{l})
	}
	return list
}

// found is a file to be opened, or the reason why it must not be. The file of the look is the one that is opened: a
// link in its path may lead elsewhere by then.
type found struct {
	path string // as it was named
	real string // without links
	err  error
}

// files lists the files that paths name, each once.
func files(paths []string) (list []found) {
	add := func(path, real string, err error) {
		switch {
		case slices.ContainsFunc(list, func(f found) bool { return f.path == path }) || len(list) > filesMax:
			return
		case len(list) == filesMax:
			err = refused(path, "%d plug-ins are the limit, and this one and those behind it are more", filesMax)
		}
		list = append(list, found{path, real, err})
	}
	for _, path := range paths {
		path = filepath.Clean(path)
		info, err := os.Stat(path)
		switch {
		case !filepath.IsAbs(path):
			add(path, "", refused(path, "the path is not absolute"))
		case err != nil:
			add(path, "", refused(path, "%v", err.(*os.PathError).Err))
		case info.IsDir():
			inside, err := filepath.Glob(filepath.Join(escape(path), "*.so"))
			if err != nil {
				add(path, "", refused(path, "%v", err))
			}
			for _, file := range inside {
				real, err := trusted(file)
				add(file, real, err)
			}
		default:
			real, err := trusted(path)
			add(path, real, err)
		}
	}
	return list
}

// escape protects the characters of a path that mean something in a pattern.
func escape(path string) string {
	return strings.NewReplacer(`\`, `\\`, `*`, `\*`, `?`, `\?`, `[`, `\[`).Replace(path)
}

// trusted returns the file at the end of a path, or why it must not be opened. Somebody else could have written it, or
// put it there.
func trusted(path string) (real string, err error) {
	if real, err = filepath.EvalSymlinks(path); err != nil {
		return "", refused(path, "%v", err)
	}
	for _, at := range []string{real, filepath.Dir(real)} {
		info, err := os.Stat(at)
		if err != nil {
			return "", refused(path, "%v", err)
		}
		if at == real && !info.Mode().IsRegular() {
			return "", refused(path, "it is no regular file")
		}
		owner := info.Sys().(*syscall.Stat_t).Uid
		if owner != 0 && owner != uint32(os.Geteuid()) {
			return "", refused(path, "%s belongs to user %d", at, owner).
				WithHint("root or the user of this process must own it")
		}
		if info.Mode().Perm()&0o022 != 0 {
			return "", refused(path, "others may write %s", at).WithHint("chmod go-w %s", at)
		}
	}
	if err := library.Whole(real); err != nil {
		return "", refused(path, "%s", strings.Replace(err.Error(), real, "it", 1))
	}
	return real, nil
}

func refused(path, format string, args ...any) *errs.Error {
	return errs.New(errs.InvalidArgument, "plug-in "+path, format, args...).
		WithScope(errs.ScopeTransport, errs.SideLocal)
}

// libraries are those that this process has opened, by path. They stay.
var libraries struct {
	sync.Mutex
	byPath map[string]*loaded
}

// opened opens a file that may be opened, once.
func opened(f found) *loaded {
	if f.err != nil {
		return &loaded{path: f.path, name: fallback(f.path), err: f.err}
	}
	libraries.Lock()
	defer libraries.Unlock()
	if l := libraries.byPath[f.real]; l != nil {
		return l
	}
	l := open(f)
	if l.err != nil {
		return l // it may be mended
	}
	if libraries.byPath == nil {
		libraries.byPath = map[string]*loaded{}
	}
	libraries.byPath[f.real] = l
	return l
}

var (
	wellNamed = regexp.MustCompile(`^[a-z][a-z0-9_-]{0,31}$`)
	unnamed   = regexp.MustCompile(`[^a-z0-9_-]+`)
)

// fallback makes a name from that of the file, for a plug-in that cannot be asked for its own.
func fallback(path string) string {
	name := strings.TrimPrefix(strings.TrimSuffix(filepath.Base(path), ".so"), "lib")
	name = strings.Trim(unnamed.ReplaceAllString(strings.ToLower(name), "-"), "-")
	if name = name[:min(len(name), 24)]; !wellNamed.MatchString(name) {
		name = "plug-in-" + name
	}
	return strings.TrimRight(name, "-")
}
