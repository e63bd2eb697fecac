package verbs

import (
	"debug/elf"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
)

// whole returns an error for a library with a file that is shorter than its own tables say. The dynamic linker would
// map it and die of SIGBUS. A file in a folder that is not looked through here, of LD_LIBRARY_PATH for example, is not
// checked.
func whole(name string) error {
	path := find(name)
	if path == "" {
		return nil
	}
	info, err := os.Stat(path)
	if err != nil {
		return nil
	}
	file, err := elf.Open(path)
	if err != nil {
		return &Missing{Unusable, fmt.Sprintf("%s is damaged: %v; install it again", path, err)}
	}
	defer func() { _ = file.Close() }()
	for _, part := range file.Progs {
		if part.Type == elf.PT_LOAD && part.Off+part.Filesz > uint64(info.Size()) {
			return &Missing{Unusable, fmt.Sprintf("%s is cut short: it has %d bytes and needs %d; install it again",
				path, info.Size(), part.Off+part.Filesz)}
		}
	}
	return nil
}

// find looks for a library where the dynamic linker of common systems does; "" if it is elsewhere.
func find(name string) string {
	if strings.ContainsRune(name, '/') {
		return name
	}
	machine := map[string]string{"amd64": "x86_64", "arm64": "aarch64"}[runtime.GOARCH]
	for _, folder := range []string{"/lib/" + machine + "-linux-gnu", "/usr/lib/" + machine + "-linux-gnu", "/lib64",
		"/usr/lib64", "/lib", "/usr/lib", "/usr/local/lib"} {
		path := filepath.Join(folder, name)
		if _, err := os.Stat(path); err == nil {
			return path
		}
	}
	return ""
}
