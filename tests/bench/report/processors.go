package report

import "runtime"

// UseProcessors lets Go code run on as many threads as the Python package does, where the reason stands (pybind). A
// benchmark calls it first, in each of its processes: with as many as there are cores, a thread that comes back from a
// system call waits for its turn.
func UseProcessors() { runtime.GOMAXPROCS(max(4, runtime.NumCPU()+2)) }
