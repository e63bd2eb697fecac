// Package delegate is the transport of orders. A slice asks the peer's engine to move bytes between its own region and
// memory that we lend it. So memory of a device is reached that no transport carries to another engine.
//
//	Submit    gives a slice to an idle lane, which calls the peer: Begin, then Ask until the transfer has ended
//	Withdraw  calls the peer with Cancel; the slice completes when the peer's transfer has ended
//	Serve     checks region, epoch and bounds, has the host carry the order out, and answers with its end
//	Revoke    shuts the region, cancels orders for it, and returns when they have ended
//
// The bytes themselves go by the peer's transports, as a transfer of its own engine, with its rails, classes and
// retries. A WRITE of ours is a READ of the peer from the lent memory. The order has the rights that the peer's
// connection proves, and the lent memory is given to that engine alone (engine/staging.go).
//
// # Once, or not at all
//
// The control plane may deliver a message twice, or never. A lane has a random name, and numbers its orders; the next
// one comes when the last has ended. The owner keeps the last number of each lane, with its end. So a message that
// comes again finds the transfer of before, and a Cancel that overtakes its order ends that before it begins.
//
// # Bounds
//
// A link has Settings.Lanes lanes, and as many slices. The owner keeps lanesMost lanes of a peer and lanesAll of all of
// them; beyond that the one goes that is idle longest, and where none is idle the order is refused, and asked again
// after a pause. An order has placesMost parts and bytesMost bytes, and its message has messageMost bytes.
//
// # The end of a peer
//
// A slice completes when the peer has answered, or when its process is known to have ended. A peer that is silent is
// asked again: its slices hold lanes and slots of its own pool, and of no other peer's.
package delegate
