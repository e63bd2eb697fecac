// Package library looks at the files of shared libraries before the dynamic linker does.
package library

import (
	"debug/elf"
	"fmt"
	"os"
)

// Whole returns an error for a file that is no library, or that is shorter than its own tables say. The dynamic linker
// would map the latter and die of SIGBUS. A file that cannot be looked at is left to the linker.
func Whole(path string) error {
	info, err := os.Stat(path)
	if err != nil {
		return nil
	}
	file, err := elf.Open(path)
	if err != nil {
		return fmt.Errorf("%s is damaged: %v; install it again", path, err)
	}
	defer func() { _ = file.Close() }()
	for _, part := range file.Progs {
		if part.Type == elf.PT_LOAD && part.Off+part.Filesz > uint64(info.Size()) {
			return fmt.Errorf("%s is cut short: it has %d bytes and needs %d; install it again", path, info.Size(),
				part.Off+part.Filesz)
		}
	}
	return nil
}
