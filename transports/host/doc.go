// Package host holds the tools by which a transport deals with other processes of its own machine. It has no code of
// its own; each tool is a package below it, and none knows a transport.
//
//	access   the greeting of two engines, the owner's grants, and the life of a link: hazard, manifest and vm together
//	fds      descriptors that cannot be opened again are passed: eventfds, pipes, dma-bufs, exported device memory
//	hazard   hazard slots: the owner of memory waits for exactly those processes that touch a region now
//	manifest which process is a peer's engine, shown by a file that only that engine makes, and where its regions are
//	vm       process handles (which process is that, has it ended, may we touch it), and copies by the kernel between
//	         two processes' memory
//
// Package shm uses all of them but fds. Package cuda has handles that the driver opens, and passes those by fds.
package host
