package config

import (
	"fmt"
	"maps"
	"net/netip"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/tent-engine/tent/gocore/errs"
)

// bind ties fields to keys: this list is what has an effect.
func (c *Config) bind() {
	e, t, f := &c.Engine, &c.TCP, &c.File
	c.bound = map[string]any{
		"name":                           &e.Name,
		"rpc_server_hostname":            &e.RPCServerHostname,
		"rpc_server_port":                &e.RPCServerPort,
		"metadata_type":                  &e.MetadataType,
		"log_level":                      &e.LogLevel,
		"merge_requests":                 &e.MergeRequests,
		"max_failover_attempts":          &e.MaxFailoverAttempts,
		"transfer_stall_timeout":         &e.TransferStallTimeout,
		"fence_timeout_host_ms":          &e.FenceTimeoutHost,
		"fence_timeout_file_ms":          &e.FenceTimeoutFile,
		"transfer_sync_timeout":          &e.TransferSyncTimeout,
		"fence_timeout_network_ms":       &e.FenceTimeoutNetwork,
		"max_pending_requests":           &e.MaxPendingRequests,
		"max_batches":                    &e.MaxBatches,
		"notification_queue":             &e.NotificationQueue,
		"allow_faults":                   &e.AllowFaults,
		"faults":                         &e.Faults,
		"attempt_timeout_ms":             &e.AttemptTimeout,
		"resend_rounds":                  &e.ResendRounds,
		"resend_interval_ms":             &e.ResendInterval,
		"rail_suspect_ms":                &e.RailSuspectAfter,
		"rail_condemn_ms":                &e.RailCondemnAfter,
		"inline_bytes":                   &e.InlineBytes,
		"link_wait_ms":                   &e.LinkWait,
		"outage_wait_ms":                 &e.OutageWait,
		"transports/tcp/addresses":       &t.Addresses,
		"transports/tcp/rail_pairs":      &t.RailPairs,
		"transports/tcp/port":            &t.Port,
		"transports/tcp/lanes":           &t.Lanes,
		"transports/tcp/congestion":      &t.Congestion,
		"transports/tcp/dial_timeout_ms": &t.DialTimeout,
		"transports/tcp/user_timeout_ms": &t.UserTimeout,
		"transports/tcp/lease_ms":        &t.Lease,
		"transports/tcp/slice_bytes":     &t.SliceBytes,
		"transports/tcp/window_bytes":    &t.WindowBytes,
		"transports/tcp/credit_bytes":    &t.CreditBytes,
		"transports/tcp/credit_requests": &t.CreditRequests,

		"transports/file/roots":            &f.Roots,
		"transports/file/descriptors":      &f.Descriptors,
		"transports/io_uring/direct":       &f.Direct,
		"transports/io_uring/depth":        &f.Depth,
		"transports/io_uring/slice_bytes":  &f.UringSliceBytes,
		"transports/io_uring/window_bytes": &f.UringWindowBytes,
		"transports/buf-io/workers":        &f.Workers,
		"transports/buf-io/slice_bytes":    &f.BufferedSliceBytes,
		"transports/buf-io/window_bytes":   &f.BufferedWindowBytes,
	}
	c.bindSHM()
	for _, s := range c.settings {
		if name, found := strings.CutSuffix(s.Key, "/rail_error_threshold"); found {
			c.bindRail(name)
		}
		if strings.HasPrefix(s.Key, "transports/") && strings.HasSuffix(s.Key, "/enable") {
			c.bound[s.Key] = nil // read by Enabled
		}
	}
	c.bound[enableKey("tcp")] = &t.Enable
}

func (c *Config) bindSHM() {
	maps.Copy(c.bound, map[string]any{
		"transports/shm/cxl_mount_path":         &c.SHM.CXLMountPath,
		"transports/shm/async_memcpy_threshold": &c.SHM.AsyncMemcpyThreshold,
		"transports/shm/trust":                  &c.SHM.Trust,
		"transports/shm/allow_any_tracer":       &c.SHM.AllowAnyTracer,
		"transports/shm/copy_workers":           &c.SHM.CopyWorkers,
	})
}

func (c *Config) bindRail(branch string) {
	r := new(Rail)
	c.Rails[strings.TrimPrefix(branch, "transports/")] = r
	c.bound[branch+"/rail_error_threshold"] = &r.ErrorThreshold
	c.bound[branch+"/rail_error_window_secs"] = &r.ErrorWindow
	c.bound[branch+"/rail_cooldown_secs"] = &r.Cooldown
	c.bound[branch+"/rail_cooldown_max_secs"] = &r.CooldownMax
	c.bound[branch+"/priority_promotion_timeout_us"] = &r.PromotionTimeout
	c.bound[branch+"/deadline_bw_arbitration"] = &r.ByDeadline
	c.bound[branch+"/allow_cross_numa"] = &r.AllowCrossNUMA
	c.bound[branch+"/rail_health_sensitivity"] = &r.HealthSensitivity
	c.bound[branch+"/rail_health_recovery"] = &r.HealthRecovery
	c.bound[branch+"/rail_probe_interval_ms"] = &r.ProbeInterval
	c.bound[branch+"/rail_soft_out_max"] = &r.SoftOutMax
	c.bound[branch+"/priority_promotion_per_entry"] = &r.PromotionPerEntry
	c.bound[branch+"/enable_priority_filtering"] = &r.Filtering
	c.bound[branch+"/local_rotation_interval_us"] = &r.FilterInterval
	c.bound[branch+"/slot_rotation_interval_ms"] = &r.SlotInterval
	c.bound[branch+"/slot_borrow"] = &r.SlotBorrow
	c.bound[branch+"/shared_quota_shm_path"] = &r.SharedPath
}

// units of keys whose field is a time.Duration.
var units = map[string]time.Duration{"s": time.Second, "ms": time.Millisecond, "us": time.Microsecond, "ns": 1}

// assign stores a canonical value in the field behind target. A pair that does not fit is a mistake in bind, which any
// Load finds at once.
func assign(target any, takes Takes, v any) {
	switch t := target.(type) {
	case nil:
	case *bool:
		*t = v.(bool)
	case *int:
		*t = int(v.(int64))
	case *uint64:
		*t = uint64(v.(int64))
	case *float64:
		*t = v.(float64)
	case *string:
		*t = v.(string)
	case *[]string:
		*t = slices.Clone(v.([]string))
	case *time.Duration:
		if f, ok := v.(float64); ok {
			*t = time.Duration(f * float64(units[takes.Unit]))
		} else {
			*t = time.Duration(v.(int64)) * units[takes.Unit]
		}
	default:
		panic(fmt.Sprintf("config: no field of type %T can be bound", target))
	}
}

// check looks at what keys mean together.
func (c *Config) check() error {
	for _, s := range c.settings {
		branch, isEnable := strings.CutSuffix(strings.TrimPrefix(s.Key, "transports/"), "/enable")
		if !isEnable {
			continue
		}
		if err := c.refuseEnabled(branch); err != nil {
			return err
		}
	}
	if kind := c.Value("metadata_type"); kind != "p2p" {
		return errs.New(errs.NotImplemented, "config", "metadata_type is %q (%s), but this build knows peers only by their address",
			kind, c.origins[c.index["metadata_type"]]).WithHint(`leave it at "p2p"`)
	}
	if err := c.checkFaults(); err != nil {
		return err
	}
	if err := c.checkTimeouts(); err != nil {
		return err
	}
	if err := c.checkCooldowns(); err != nil {
		return err
	}
	return c.checkLanes()
}

// checkFaults wants faults to be allowed by whoever sets them: a text that was left in a file must not break a service.
func (c *Config) checkFaults() error {
	if c.Value("faults") == "" || c.Value("allow_faults") == true {
		return nil
	}
	return errs.New(errs.PermissionDenied, "config", "faults is set (%s), but allow_faults is false (%s)",
		c.origins[c.index["faults"]], c.origins[c.index["allow_faults"]]).WithHint("set allow_faults to true, or leave faults out")
}

// checkCooldowns wants the first pause of a rail to be at most the longest.
func (c *Config) checkCooldowns() error {
	for _, name := range slices.Sorted(maps.Keys(c.Rails)) {
		first, most := "transports/"+name+"/rail_cooldown_secs", "transports/"+name+"/rail_cooldown_max_secs"
		if a, b := c.Value(first).(float64), c.Value(most).(float64); a > b {
			return errs.New(errs.InvalidArgument, "config", "%s is %g s, more than %s, which is %g s", first, a, most, b)
		}
	}
	return nil
}

// checkLanes follows upstream: three older keys of rdma mean the same number, and num_lanes replaces them.
func (c *Config) checkLanes() error {
	const branch = "transports/rdma/"
	said, value := "", any(nil)
	for _, name := range [...]string{"num_lanes", "device/num_cq_list", "endpoint/qp_mul_factor", "workers/num_workers"} {
		i := c.index[branch+name]
		switch {
		case c.origins[i] == OriginDefault:
		case said == "":
			said, value = name, c.values[i]
		case c.values[i] != value:
			return errs.New(errs.InvalidArgument, "config", "%s%s is %v, but %s is %v", branch, name, c.values[i], said, value).
				WithHint("set only %snum_lanes", branch)
		}
	}
	return nil
}

// checkFolders takes absolute paths. Whether they exist is seen when a file is opened: a mount may come later.
func checkFolders(v any) error {
	for _, text := range v.([]string) {
		if !path.IsAbs(text) {
			return fmt.Errorf("%q is not an absolute path", text)
		}
	}
	return nil
}

// checkSharedName takes what shm_open takes: a name without a slash but the first one.
func checkSharedName(v any) error {
	name := strings.TrimPrefix(v.(string), "/")
	switch {
	case v == "":
		return nil
	case name == "" || name == "." || name == ".." || strings.ContainsAny(name, "/\x00") || len(name) > 255:
		return fmt.Errorf("%q is no name of shared memory", v)
	}
	return nil
}

// checkFileSlice wants slices to end on a page, so that files are moved in whole ones.
func checkFileSlice(v any) error {
	if v.(int64)%4096 != 0 {
		return fmt.Errorf("%d is not a multiple of 4096", v)
	}
	return nil
}

// checkAddresses takes IP addresses, each once; a link-local one with its zone.
func checkAddresses(v any) error {
	seen := map[netip.Addr]bool{}
	for _, text := range v.([]string) {
		a, err := netip.ParseAddr(text)
		switch {
		case err != nil:
			return fmt.Errorf("%q is not an IP address", text)
		case a.IsUnspecified() || a.IsMulticast():
			return fmt.Errorf("%q is not the address of one interface", text)
		case seen[a]:
			return fmt.Errorf("%q is listed twice", text)
		}
		seen[a] = true
	}
	return nil
}

// enableKey is the switch of a transport.
func enableKey(branch string) string { return "transports/" + branch + "/enable" }
