package control

import (
	"context"
	"net"
	"sync"
	"time"
)

const (
	reachAgain = 250 * time.Millisecond // without an answer, before another connection is begun beside the first
	reachMost  = 6                      // connections of one dial
)

// outcome is the end of one attempt to connect.
type outcome struct {
	conn net.Conn
	err  error
}

// reach dials an address, again beside the first connection while there is no answer, and returns the first outcome.
// These are hedged requests (Dean and Barroso, "The Tail at Scale", CACM 2013). The kernel repeats a lost SYN after a
// second (RFC 6298), and an engine under attack loses some: its accept queue is full at one moment and not at the next.
func reach(ctx context.Context, address string,
	dial func(ctx context.Context, network, address string) (net.Conn, error)) (net.Conn, error) {
	ctx, cancel := context.WithCancel(ctx)
	outcomes := make(chan outcome, reachMost)
	var dialing sync.WaitGroup
	begin := func() {
		conn, err := dial(ctx, "tcp", address)
		outcomes <- outcome{conn, err}
	}
	first := firstOutcome(outcomes, func() { dialing.Go(begin) })
	cancel()
	dialing.Wait()
	for len(outcomes) > 0 {
		if late := <-outcomes; late.err == nil {
			_ = late.conn.Close()
		}
	}
	return first.conn, first.err
}

// firstOutcome begins attempts until there is an outcome.
func firstOutcome(outcomes <-chan outcome, begin func()) outcome {
	again := time.NewTicker(reachAgain)
	defer again.Stop()
	begin()
	for tries := 1; ; {
		select {
		case o := <-outcomes:
			return o
		case <-again.C:
			if tries < reachMost {
				tries++
				begin()
			}
		}
	}
}
