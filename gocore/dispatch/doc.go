// Package dispatch is the core: a state machine without clock, lock, goroutine or I/O. It takes events and now, and
// returns submissions, withdrawals and deadlines as Effects. One caller at a time: gocore/engine holds its mutex around
// every call. Policy packages (plan, rail, qos) are called from here and from nowhere else.
//
// # Where to read
//
//	api core tables timers      the words of the outside, a step, and the tables of links and rails
//	task piece batch            the records of requests: task and piece draw their lives
//	inline                      small requests that their caller carries out itself
//	queue cut bids choose       a task waits for its link, and a rail with room pulls a slice of it
//	reach numa nics             rails that leave a task to others: by its keys, its memory, its policy
//	parts homes stage gate      tasks of many pages, in several regions, over several hops, behind a stream
//	device admit publish        classes on one NIC: the window of LOW, order, filter and slots
//	deadline                    earliest deadline first by slack
//	complete failover ending    slices come back, errors and their consequences, and quiescence
//	link health                 rails come and go; they are paused, probed and come back
//	suspect standstill presence a rail falls silent, a peer stands still, a peer is silent or has gone
//	slow hedge                  a rail becomes slow; the tail of a transfer is sent over another one
//	forgotten stuck             a slice is lost on a rail that goes on, a transport owes a word and does not give it
//	rekey astray fenced stray   descriptors change, memory moves, its owner fences it; a transport errs
//	counters gauges             figures; explain and predict answer questions
//	invariants_on               the core's books against each other, in tests
//
// # Time
//
// Records that wait equally long are kept in lists, which are in order of time by themselves: tasks that are served
// (the stall limit), tasks that end (a list each fence bound), and pieces that pause (a list each length). Deadlines,
// links, rails, peers and NICs have timers. Silence, and limits but for deadlines, have a clock of their own,
// Core.awake, which stands still while this process was not let run.
//
// # Ends
//
// Each task ends once. One that is pending has something that ends it at the latest: its deadline; the stall limit once
// it was served; the timer of its link before that (tendLink); the fence bound once it has a verdict. Three kinds wait
// without a limit of the core: tasks at a gate, which the caller opens, and those that went astray, until Relocate.
// Their deadlines count meanwhile. The third are tasks with a verdict of which the transport does not come back from
// Withdraw: it may be at their memory. An event says so.
//
// Choices with a rejected alternative are records in docs/design/decisions: 0004 to 0006, 0011, 0012, 0014, 0016 to
// 0019, 0021, 0022, 0075 to 0078, 0157, 0158, 0171, 0179, 0185, 0195, 0201 to 0203.
package dispatch
