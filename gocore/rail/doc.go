// Package rail is the policy about one rail, from its lifecycle (Life) to its return (SlowStart). Breaker says whether
// it fails too often, Health how good it is, Meter how fast and how talkative, Blame which end is at fault when it
// fails, MayLeave how many of a peer's rails may be out at once, and Presence whether the peer itself is there. It is
// pure: now is an argument, nothing is started, and gocore/dispatch is its only caller.
//
// Sources: the rail monitor of the failover seed (thresholds, cooldown, both recovery signals), the health values, the
// failures and the three scenarios of the LNet resiliency seed. Beyond them: memory of failures decays instead of being
// erased, probes bring a rail back before its cooldown ends, and slow start (RFC 5681) trusts a rail that comes back
// little by little.
//
// Choices with a rejected alternative are records in docs/design/decisions: 0020, 0024, 0200.
package rail
