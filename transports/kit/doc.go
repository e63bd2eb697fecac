// Package kit holds what every transport needs and none should write again. It contains no transport, and it imports the
// vocabulary and the contract only.
//
//	Slots        keys of regions, open files and the like: index and generation, looked up without a lock
//	Links        the same for links; it counts the calls that name one that has ended
//
// A transport takes the parts that it wants; package loop takes all of them and is the example to copy.
package kit
