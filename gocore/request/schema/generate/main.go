// Command generate writes every file that is made from the table of request terms. Run it by `go generate
// ./gocore/request`.
package main

import (
	"fmt"
	"os"
	"path/filepath"

	"github.com/tent-engine/tent/gocore/request/schema"
)

func main() {
	if err := write("../.."); err != nil { // go generate runs in gocore/request
		fmt.Fprintln(os.Stderr, "generate:", err)
		os.Exit(1)
	}
}

// write puts the files under the root of the repository.
func write(root string) error {
	files, err := schema.Files()
	if err != nil {
		return err
	}
	for name, text := range files {
		path := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(path, text, 0o644); err != nil {
			return err
		}
	}
	return nil
}
