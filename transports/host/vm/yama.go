package vm

import (
	"bytes"
	"fmt"
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// Scope is Yama's ptrace_scope.
type Scope int

// Scopes.
const (
	ScopeAbsent   Scope = -1 // this kernel has no Yama
	ScopeClassic  Scope = 0  // processes of one user may
	ScopeRelation Scope = 1  // descendants, and the one that AllowTracer named
	ScopeAdmin    Scope = 2  // CAP_SYS_PTRACE only
	ScopeNobody   Scope = 3
)

const scopePath = "/proc/sys/kernel/yama/ptrace_scope"

// TraceScope reads Yama's scope. A scope that cannot be read counts as absent: then the attempt will tell.
func TraceScope() Scope {
	text, err := os.ReadFile(scopePath)
	if err != nil {
		return ScopeAbsent
	}
	n, err := strconv.Atoi(string(bytes.TrimSpace(text)))
	if err != nil {
		return ScopeAbsent
	}
	return Scope(n)
}

// String describes the effect of the scope on us, with the knob.
func (s Scope) String() string {
	switch s {
	case ScopeAbsent:
		return "no Yama"
	case ScopeClassic:
		return "Yama allows processes of one user (ptrace_scope 0)"
	case ScopeRelation:
		return "Yama allows one process that the owner names (" + scopePath + " is 1)"
	case ScopeAdmin:
		return "Yama allows CAP_SYS_PTRACE only (" + scopePath + " is 2)"
	}
	return fmt.Sprintf("Yama allows nobody (%s is %d)", scopePath, int(s))
}

// AnyTracer stands for every process of our user in AllowTracer.
const AnyTracer = -1

// AllowTracer names the one process that may touch our memory under scope 1, besides our ancestors; AnyTracer names
// all, 0 takes the permission back. It holds for the whole process until the next call, by any of its engines. The
// error wraps EINVAL where there is no Yama, or no such process.
func AllowTracer(pid int) error {
	who := uintptr(pid)
	if pid == AnyTracer {
		who = ^uintptr(0)
	}
	if err := unix.Prctl(unix.PR_SET_PTRACER, who, 0, 0, 0); err != nil {
		return fmt.Errorf("prctl(PR_SET_PTRACER, %d): %w", pid, err)
	}
	return nil
}
