package config

import "time"

// Rail holds the keys that every transport with rails takes under its own branch, for the core: a transport embeds it
// in its Settings. The engine reads it through Config.RailOf, so the copy that Open is given does not matter.
type Rail struct {
	ErrorThreshold    int           `key:"rail_error_threshold" takes:"1..1048576" default:"3" from:"failover seed" help:"Errors inside the window that pause a rail."`
	ErrorWindow       time.Duration `key:"rail_error_window_secs" takes:"0.001..86400" unit:"s" default:"10" from:"failover seed" help:"Sliding window in which errors of a rail are counted."`
	Cooldown          time.Duration `key:"rail_cooldown_secs" takes:"0.001..86400" unit:"s" default:"30" atmost:"rail_cooldown_max_secs" from:"failover seed" help:"First pause of a rail; it doubles with each further one."`
	CooldownMax       time.Duration `key:"rail_cooldown_max_secs" takes:"0.001..86400" unit:"s" default:"300" from:"failover seed" help:"Longest pause of a rail; a constant of the seed."`
	HealthSensitivity int           `key:"rail_health_sensitivity" takes:"1..1000" default:"100" from:"LNet resiliency seed" help:"Health that a failure takes from a rail, which has 1000 at best."`
	HealthRange       int           `key:"health_value_range" takes:"0..1000" default:"99" from:"LNet resiliency seed" help:"Rails whose health differs by no more are equals. Where it is not set, one failure is more: one less than rail_health_sensitivity. 0 takes the best alone, 1000 leaves health out of the choice."`
	HealthRecovery    int           `key:"rail_health_recovery" takes:"1..1000" default:"10" from:"LNet resiliency seed" help:"Health that a success gives back to a rail."`
	ProbeInterval     time.Duration `key:"rail_probe_interval_ms" takes:"1..60000" unit:"ms" default:"10" help:"Interval of the probes of a rail that is out, while something is to be sent to its peer."`
	SoftOutMax        float64       `key:"rail_soft_out_max" takes:"0.01..1" default:"0.75" help:"Share of the rails of a peer that silence alone may take out at once; one of two always may, the last never."`
	SuspectAfter      time.Duration `key:"rail_suspect_ms" takes:"1..60000" unit:"ms" default:"5" help:"rail_suspect_ms for the rails of this transport alone; that of the engine where it is not set. Fast networks answer within microseconds, and may be doubted sooner."`
	NUMAPenalties     []float64     `key:"numa_penalties" takes:"factors" default:"[1, 5, 10]" from:"upstream" help:"Factors of the predicted time of a rail by its distance to the memory: near, on another NUMA node or host bridge, and beyond that. A rail that is far takes a slice when even so it would be done first."`
	AllowCrossNUMA    bool          `key:"allow_cross_numa" default:"true" from:"transports seed" help:"NICs of another NUMA node than the memory's help when the near ones have no room. If false they do so only when no near one is left."`
	StrictLocalNUMA   bool          `key:"strict_local_numa" default:"false" from:"upstream" help:"The same as allow_cross_numa: false, by upstream's name."`
	Filtering         bool          `key:"enable_priority_filtering" default:"true" from:"QoS seed" help:"NICs take turns in refusing lower classes while a higher one has work; of several rails to a peer, one always takes each class."`
	FilterInterval    time.Duration `key:"local_rotation_interval_us" takes:"1..1000000000" unit:"us" default:"200" from:"QoS seed" help:"Interval of those turns."`
	PromotionTimeout  time.Duration `key:"priority_promotion_timeout_us" takes:"1..1000000000" unit:"us" default:"10000" from:"QoS seed" help:"Time since a waiting class was last served on a rail after which its head gets one turn."`
	PromotionPerEntry bool          `key:"priority_promotion_per_entry" default:"false" from:"upstream" help:"As many turns in the time-out as requests of the class wait, instead of one."`
	ByDeadline        bool          `key:"deadline_bw_arbitration" default:"false" from:"upstream" help:"Order inside a class by slack: deadline - now - bytes / rate; requests without a deadline come last, and one that would be late at twice the best measured rate ends as TIMEOUT unsent."`
	SlotInterval      time.Duration `key:"slot_rotation_interval_ms" takes:"1..60000" unit:"ms" default:"2" from:"QoS seed" help:"Length of a time slot shared by the processes of a host."`
	SlotBorrow        bool          `key:"slot_borrow" default:"true" help:"A slot that no process claims for a higher class may be used by the lower ones. Work claims slots while it lasts and as long again, one interval at most. Without it LOW has a third of the time also on an idle host; with it the first HIGH request after a pause finds at most one window of LOW in front of it."`
	SharedPath        string        `key:"shared_quota_shm_path" takes:"shared memory name" from:"QoS seed" help:"Name of the shared memory by which the processes of a host share slots and the load of NICs; all of one user, and with one slot_rotation_interval_ms. Empty is off."`
}
