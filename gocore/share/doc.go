// Package share keeps the memory by which the processes of a host coordinate on their common NICs. It holds the classes
// that each process wants to send, and its bytes in flight. From it follow the slots of the QoS seed (qos.Slots) and
// the load that the choice of rails takes into account (qos.Quota). Each engine opens a Memory under the name in
// shared_quota_shm_path; the core asks a Device of it.
//
// # Survival of failures
//
//   - No process is first, and none has to stay: slots follow from the monotonic clock, and no process rotates them.
//     The file is complete before it has a name, and stays when all have left.
//   - kill -9 at any instruction: a process writes single words, and only into its own row, or times that age by
//     themselves. It owns its row for as long as it holds a lock of the kernel; the next to join gives the rows of the
//     dead back. Its bytes in flight do not count any more after 200 ms, nor do those of a stopped process, or of a
//     dead one with a forked child that has inherited the lock.
//   - rm -f, or another file under the name: within a tenth of a second every active process is in the new one.
//   - A file that is cut short, overwritten or of another version: it is refused and not written to. An engine that had
//     it mapped gets a fault, which it is guarded against, goes on alone, and says so (log, event sharing_off); it
//     tries again ten times a second (sharing_on).
//   - Another user's file: PermissionDenied at start. The file has mode 0600, and root does not join others' either.
//   - Times that make no sense, of another time namespace or of a broken process, are not believed: bytes of the future
//     do not count, and a wish of the future is none. Processes of another time namespace are refused at start.
//
// At start every failure is an error: somebody has set the path because he counts on it. Later, transfers come first.
//
// # Cost
//
// A call of a Device is some comparisons; once a grain (a sixteenth of a slot, 100 us at most) it is one store, or one
// load for each living process, to a line that few write to. BenchmarkSlice measures the cost of taking part per slice,
// alone and beside a process that does nothing else. Nothing on that way locks, waits or enters the kernel.
//
// Choices with a rejected alternative are records in docs/design/decisions: 0015, 0025 to 0028.
package share
