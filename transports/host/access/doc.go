// Package access lets the engines of one host into each other's memory, and takes that back. It moves no bytes, and
// knows no kind of memory: a transport with a Point for its engine adds both.
//
//	initiator                                    owner
//	Link: Greet, a call of the control plane ->  Serve: which process is that (package manifest)?
//	Access: process, page, manifest         <--  Grant: a page of hazard slots for this peer alone
//	Traffic.Met, then the rail is up             Revoke waits for the slots of the page (package hazard)
//	leaves: by a message, and in the page   -->  the grant ends
//	the peer has ended, or said goodbye     <--  closes: says goodbye to all that have a grant
//
// The end of a process is heard from its pidfd, at once, and an exec within five seconds (vm.Space). Messages about
// leaving may be lost: the page says it, too.
//
// # Where to read
//
//	point               an engine's end, and its close
//	link greet          our way into a peer: the life of a link, and the greeting
//	serve grants        peers that greet us, and their grants
//	watch wire          ends of processes, and messages
//
// # Locks
//
// grants.mu guards the grants; a page is made and entered under it, so that a Revoke meets each page or comes before
// it. The locks of the hazard table and of the watcher are taken under it. Traffic and Config.Ended are called under
// none.
//
// # Strangers
//
// A greeting names a process and a file of it, the engine's manifest; the answer does the same. Each side looks itself.
// A refused peer always hears the same sentence, and costs nothing; the owner's log and tent_refused_total have the
// reason. Package shm lists the boundaries between processes, and the effect of each.
//
// # Goroutines
//
// One a Link; with the first foreign peer, one that sleeps on all pidfds. Wait awaits the former, Close ends the
// latter, and awaits the calls of peers that are being answered.
package access
