//go:build cgo

package verbs

import (
	"os"
	"path/filepath"
	"runtime"
	"strings"

	"github.com/tent-engine/tent/transports/host/library"
)

// whole returns an error for a library that is damaged. A file in a folder that is not looked through here, of
// LD_LIBRARY_PATH for example, is not checked.
func whole(name string) error {
	path := find(name)
	if path == "" {
		return nil
	}
	if err := library.Whole(path); err != nil {
		return &Missing{Unusable, err.Error()}
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
