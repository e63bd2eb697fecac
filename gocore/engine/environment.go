package engine

import (
	"os"

	"golang.org/x/sys/unix"
)

// atSecure is AT_SECURE of <elf.h>: the kernel's word that a program has rights that its caller lacks.
const atSecure = 23

// EnvironmentOf returns the reader of a program's variables, nil where none may be read, as secure_getenv(3) does. A
// program that runs with more rights than its caller takes no settings from that caller: its file has set-user-ID or
// capabilities. The program hands its variables over: os.Getenv does not see the changes that Python and C make.
func EnvironmentOf(variables map[string]string) func(string) string {
	if privileged {
		return nil
	}
	return func(name string) string { return variables[name] }
}

var privileged = isPrivileged(os.Getuid() != os.Geteuid() || os.Getgid() != os.Getegid(), unix.Auxv)

// isPrivileged trusts the kernel's word, and the ids where that cannot be read.
func isPrivileged(otherIDs bool, auxv func() ([][2]uintptr, error)) bool {
	list, err := auxv()
	if err != nil {
		return otherIDs
	}
	for _, entry := range list {
		if entry[0] == atSecure {
			return otherIDs || entry[1] != 0
		}
	}
	return otherIDs
}
