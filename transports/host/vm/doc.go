// Package vm moves bytes between this process and the memory of another one of the same host, by process_vm_readv and
// process_vm_writev. It also says which process that is. It is how shm reaches memory that a user owns and tent did not
// allocate: nothing has to be prepared by the owner, and nobody there wakes up. It allocates nothing per call.
//
// # Which process
//
// A pid alone names nobody: numbers are used again. Open takes a pidfd and then checks the start time, so a Process is
// the one that told us both. Only the pidfd says that it has ended. It is silent when the process calls exec and goes
// on as another program, which may have other memory at the same addresses. A Space ends in both cases.
//
// The two system calls that move bytes take a pid, and look for the address space when they begin: a call that is under
// way stays in that one. A caller asks Space.Gone before each. That leaves the calls that begin within a millisecond of
// the last answer: for an exec, which takes about as long itself, or while the caller's thread is stopped between the
// question and its call and the number becomes another process's. A child by vfork keeps its parent's address space
// alive until it calls exec.
//
// # Boundaries
//
//	other user             the owner's real, effective and saved uid and gid must be ours (or CAP_SYS_PTRACE here)
//	not dumpable           a process that changed its user, or asked for it: prctl(PR_SET_DUMPABLE)
//	other user or pid
//	namespace              a container's boundary: pids mean other processes there, and uids other users
//	Yama, scope 1          only a descendant, or the one process that the owner named by AllowTracer, or any if it
//	                       said so
//	Yama, scope 2 and 3    CAP_SYS_PTRACE, or nobody
//
// Yama restricts calls that "attach": moving bytes, and pidfd_getfd. It does not restrict calls that "read": opening
// /proc/PID/fd/N, by which Process.Reopen gets a file of the same user under every scope. So memory that tent allocated
// can be mapped where memory that the user owns cannot be reached.
//
// # Numbers
//
// A call costs some 1.6 µs before the first byte and 0.2 to 0.3 µs per page that is not next to the one before; so
// pieces are joined: up to 1,024 in a call. The kernel does not let itself be interrupted inside a call, hence the
// bound on its bytes, some 100 µs.
package vm
