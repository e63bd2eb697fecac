// Package manifest binds an engine to a process. By its manifest an engine shows the other processes of its user which
// engine it is, and where its regions are.
//
// # Why
//
// The control plane proves which engine a peer is (its id is made of its key), not which process of this host. A peer
// could name any: one that it wants somebody else to write into, or the caller's own. So a process counts as an
// engine's only if it holds the manifest with that engine's id. Only the engine's own process makes one.
//
// # The file
//
// A manifest is a memfd. Peers open it through /proc and map it for reading:
//
//	        +---------------------------------+----------+----------+-----
//	file:   | magic, version, id, count; turn | region 0 | region 1 | ...
//	        +---------------------------------+----------+----------+-----
//
// A region's entry has its address, its size, the permission of peers, and the file by which it can be mapped. So none
// of these comes from a descriptor, which may have passed through other hands (a blob, a metadata server). The entry
// has a generation, which its owner writes last and clears first: a reader that looks at it twice, around the fields,
// has all of one region. The turn grows with each region that ends or changes: a reader of many looks again only then.
//
// # The checks of Meet
//
// Meet is the same for both sides of a greeting. Each names a process and a number of one of its descriptors; nothing
// else is believed.
//
//	the process began when it says           pidfd, and /proc/PID/stat
//	it is of our user, group and namespaces  /proc/PID/status and ns
//	the file is called tent-manifest         the name of a memfd is given by the program that makes it
//	our user made it                         owner of the inode
//	it is sealed                             F_SEAL_FUTURE_WRITE: nobody writes it but through its maker's mapping
//	it has the id of the peer                the one that the control plane has proved
//
// A stranger, on the network or another user of the host, may name any process and fails: no process of our user shows
// a manifest with the stranger's id. A greeting that is relayed shows the relayed engine's id, and our own
// one shows ours. The reason of a refusal is for our log, never for the peer, which would learn about our processes.
//
// # Alternatives
//
// A unix socket would give the peer's process by SO_PEERCRED. It needs a thread that answers, and a name in a common
// file system, or one in the abstract namespace, which any user may take first. Its proof is the same: the kernel
// knows a process of our user at the other end. A secret in the page that the owner makes for a peer, proved by
// a MAC, needs a page for everybody that asks, a second message, and a clock to take pages back.
package manifest
