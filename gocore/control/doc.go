// Package control carries the calls between two engines before and beside the bytes. They are hello, description of
// regions, messages from one end of a transport to the other, notifications, reports, probes. It runs over gRPC; a call
// takes some 100 µs on one host, so nothing of it is on the data path.
//
//	engine A                                   engine B
//	Client.Open(address)  ---- TLS ----------> both ends prove their keys: transport.Peer's ID and Identity
//	                      ---- Hello --------> Server: version, and its words about itself
//	Client.Describe       ---- Describe -----> Handler.Describe
//	Client.Changed        ---- Changed ------> Handler.Changed    (descriptors are others now: describe again)
//	Client.Call           ---- Transport ----> Handler.Serve      (a transport's handshake, withdrawal, fence)
//	Client.Notify         ---- Notify -------> Handler.Notified
//	Client.Report         ---- Report -------> Handler.Reported   (the end of a transfer with a trace)
//	Client.Probe          ---- Probe --------> answered by the server itself
//
// The connection names caller and callee, never a message (gocore/security). A call to another engine than the one that
// is meant ends as PeerRestarted before anything is sent, so that nobody talks to the successor of a process in the
// belief that it still knows of earlier promises.
//
// # Failing at once
//
// gRPC hides connections: it dials behind the caller's back, waits, backs off, and reports "unavailable". Here the
// client dials itself and gives gRPC one finished connection after the other (dial.go), so that a refused port, an
// unknown host and a foreign service are told apart in the time they take. A connection that broke is replaced, and the
// call is tried once more on the new one. A peer that offers several addresses is called by any that answers (ways.go).
//
// # Where to read
//
//	control call wire          the words of the outside, the calls of a client, and errors over the wire
//	changed report             two calls with both their ends
//	client dial reach ways     connections that are kept, how one is made, and by which address
//	awake                      limits that count only while this process is let run
//	server listen admission    the calls that are answered, where, and for whom
//	door intake/ guests        connections come in, are counted, and make room for others
//	turnstile parking limits   handshakes in turn, networks that wait, and the rest of the bounds
//
// # Locks
//
// A lock may be taken under one that stands above it, and never the other way round. No call, handler or function of
// Options runs under one.
//
//	Client.mu                  under it the credentials are asked: security.barred.mu
//	guests.mu                  under it turns are taken and given back
//	turnstile.mu               under it connections are replaced: intake.Conn.mu
//	Server.mu, ways.mu, tap.mu, and that of awake    leaves
//
// # Goroutines and shutdown
//
// Server owns one goroutine per listener, one for guests that were parked, and those of gRPC per connection. Close
// refuses new connections, ends silent ones, gives calls a short grace, cancels the rest and waits. Client owns one
// goroutine per dial under way, with those of its hedged connections, and gRPC's per connection; Close cancels dials,
// closes connections and waits. A call to several addresses has a goroutine for each, and waits for all. Neither has a
// ticker: an idle one costs no CPU.
package control
