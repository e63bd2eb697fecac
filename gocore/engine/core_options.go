package engine

import (
	"github.com/tent-engine/tent/gocore/config"
	"github.com/tent-engine/tent/gocore/dispatch"
	"github.com/tent-engine/tent/gocore/qos"
	"github.com/tent-engine/tent/gocore/rail"
)

// coreOptions hands the settings of transfers to the core.
func (e *Engine) coreOptions(o Options) dispatch.Options {
	c := &o.Config.Engine
	names := make([]string, len(o.Transports))
	for i, plug := range o.Transports {
		names[i] = plug.Factory.Name()
	}
	options := dispatch.Options{Batches: c.MaxBatches, Pending: c.MaxPendingRequests, Failovers: c.MaxFailoverAttempts,
		Stall: c.TransferStallTimeout, FenceHost: c.FenceTimeoutHost, FenceNetwork: c.FenceTimeoutNetwork,
		FenceFile: c.FenceTimeoutFile, Retries: c.ResendRounds, RetryAfter: c.ResendInterval,
		AttemptLimit: c.AttemptTimeout, SuspectAfter: c.RailSuspectAfter, CondemnAfter: c.RailCondemnAfter,
		LinkWait: c.LinkWait, Outage: c.PeerOutageTimeout, Merge: c.MergeRequests, Transports: names,
		Devices: o.Config.Devices(), Neighbours: e.neighbours, Rails: make([]dispatch.RailOptions, len(names))}
	for i, name := range names {
		if r := o.Config.RailOf(name); r != nil {
			options.Rails[i] = railOptions(r)
		}
	}
	return options
}

// railOptions hands the keys of rails to the core.
func railOptions(r *config.Rail) dispatch.RailOptions {
	options := dispatch.RailOptions{Ageing: r.PromotionTimeout, OwnNode: !r.AllowCrossNUMA || r.StrictLocalNUMA,
		ByDeadline: r.ByDeadline, SuspectAfter: r.SuspectAfter, PerEntry: r.PromotionPerEntry,
		Slots: qos.Slots{Interval: r.SlotInterval, Borrow: r.SlotBorrow},
		Settings: rail.Settings{Threshold: r.ErrorThreshold, Window: r.ErrorWindow, Cooldown: r.Cooldown,
			CooldownMax: r.CooldownMax, Sensitivity: r.HealthSensitivity, Step: r.HealthRange + 1,
			Recovery: r.HealthRecovery, ProbeEvery: r.ProbeInterval, SoftOut: r.SoftOutMax}}
	copy(options.Penalties[:], r.NUMAPenalties)
	if r.Filtering {
		options.Filter.Interval = r.FilterInterval
	}
	return options
}
