package main

import (
	"errors"
	"fmt"
	"net/rpc"
	"os/exec"
	"time"

	"github.com/tent-engine/tent/gocore/clock"
	"github.com/tent-engine/tent/tests/bench/report"
	"github.com/tent-engine/tent/tests/forked"
	"github.com/tent-engine/tent/tests/netbed"
)

const mptcpStall = "mptcp: stall"

// mptcp measures one connection of the kernel's multipath TCP over four rails, for comparison. It is for the row about
// the longest time without a new byte at a silent loss.
func mptcp(o options, f figures) error {
	if _, err := exec.LookPath("ip"); err != nil {
		report.Progress("mptcp: ip (iproute2) tells the kernel of the paths: %v", err)
		return nil
	}
	bed, err := netbed.New(4)
	if err != nil {
		return err
	}
	defer bed.Close()
	for _, r := range bed.Rails {
		if err := r.Limit(o.rate); err != nil {
			return err
		}
	}
	if err := multipath(bed); err != nil {
		report.Progress("mptcp: %v", err)
		return nil
	}
	far, err := bed.B.Start()
	if err != nil {
		return err
	}
	defer func() { _ = far.Close() }()
	near, err := bed.A.Start()
	if err != nil {
		return err
	}
	defer func() { _ = near.Close() }()
	var address string
	if err := far.Call("Plain.Listen", bed.B.Addresses[0], &address); err != nil {
		return err
	}
	send := SendArgs{From: bed.A.Addresses[:1], To: []string{address}, For: 2 * runFor}
	for i := range few(o) {
		longest, err := mptcpRun(bed, near, far, send, i%4)
		if errors.Is(err, errOnePath) {
			report.Progress("mptcp: %v", err)
			return nil
		} else if err != nil {
			return err
		}
		f.addTime(mptcpStall, longest)
	}
	return nil
}

func mptcpRows(_ options, f figures) []report.Row {
	const name = "for comparison, silent loss, multipath TCP: longest time without a new byte, beyond control"
	if len(f[mptcpStall]) == 0 {
		return []report.Row{{Name: name, Reached: "not measured"}}
	}
	return []report.Row{report.Beside(name, f.spread(mptcpStall))}
}

var errOnePath = errors.New("the kernel made an ordinary connection")

// mptcpRun breaks a rail in the middle of a stream and returns the longest stall beyond that before the fault.
func mptcpRun(bed *netbed.Bed, near, far *forked.Child, send SendArgs, rail int) (time.Duration, error) {
	trace, several := &Trace{}, false
	sending := near.Begin("Plain.Stream", send, &several)
	watching := far.Begin("Plain.Watch", send.For, trace)
	<-time.After(send.For / 2)
	from := clock.Now()
	if err := bed.Rails[rail].Drop(netbed.Both); err != nil {
		return 0, err
	}
	err := errors.Join(awaitBoth(near, sending, far, watching), bed.Rails[rail].Heal())
	if err == nil && !several {
		err = errOnePath
	}
	if err != nil {
		return 0, err
	}
	return trace.stall(from, trace.End) - trace.stall(trace.Begin.Add(send.For/4), from), nil
}

func awaitBoth(near *forked.Child, sending *rpc.Call, far *forked.Child, watching *rpc.Call) error {
	return errors.Join(far.End(watching), near.End(sending))
}

// multipath gives the paths to both kernels.
func multipath(bed *netbed.Bed) error {
	for _, h := range []*netbed.Host{bed.A, bed.B} {
		if err := h.Run("ip", "mptcp", "limits", "set", "subflow", "8", "add_addr_accepted", "8"); err != nil {
			return fmt.Errorf("no multipath TCP: %w", err)
		}
		for i, a := range h.Addresses[1:] {
			kind := "subflow"
			if h == bed.B {
				kind = "signal"
			}
			if err := h.Run("ip", "mptcp", "endpoint", "add", a, "dev", fmt.Sprintf("e%d", i+1), kind); err != nil {
				return err
			}
		}
	}
	return nil
}

// inTurn has a plain program send the world's small requests over a connection for each rail.
func (w *world) inTurn(long time.Duration) (took []time.Duration, err error) {
	send := SendArgs{From: w.A.Addresses, For: long, Every: w.load.SmallEvery, Burst: w.load.SmallBurst}
	for _, a := range w.B.Addresses {
		var address string
		if err := w.far.Call("Plain.Listen", a, &address); err != nil {
			return nil, err
		}
		send.To = append(send.To, address)
	}
	err = w.near.Call("Plain.InTurn", send, &took)
	return took, err
}
