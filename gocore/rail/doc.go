// Package rail is the policy about one rail: its lifecycle (Life), whether it fails too often (Breaker), how it comes
// back (SlowStart), how good it is (Health), how fast and how talkative it is (Meter), which end is at fault when it
// fails (Blame), and how many of a peer's rails may be out at once (MayLeave). It is pure: now is an argument, nothing
// is started, and gocore/dispatch is its only caller.
//
// Sources: the rail monitor of the failover seed (thresholds, cooldown, both recovery signals), the health values, the
// failures and the three scenarios of the LNet resiliency seed. Beyond them: memory of failures decays instead of being
// erased, probes bring a rail back before its cooldown ends, and slow start (RFC 5681) trusts a rail that comes back
// little by little.
//
// Choices with a rejected alternative are records in docs/design/decisions: 0020, 0024.
package rail
