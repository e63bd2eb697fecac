package control

import (
	"context"
	"sync"
	"time"
)

// awakeTick is the length of a look at the time; a pause of this process counts for two of them at most.
const awakeTick = 100 * time.Millisecond

// awake returns a context that ends with a cause after limit, of which only the time counts in which this process was
// let run. A process that was stopped, frozen or not given a processor has not waited for its peer meanwhile: the
// answer may be in its socket.
func awake(ctx context.Context, limit time.Duration, cause error) (context.Context, context.CancelFunc) {
	ctx, end := context.WithCancelCause(ctx)
	var mu sync.Mutex
	left, last := limit, time.Now()
	mu.Lock()
	defer mu.Unlock()
	var timer *time.Timer
	timer = time.AfterFunc(min(left, awakeTick), func() {
		mu.Lock()
		defer mu.Unlock()
		now := time.Now()
		left, last = rest(left, now.Sub(last)), now
		switch {
		case ctx.Err() != nil:
		case left <= 0:
			end(cause)
		default:
			timer.Reset(min(left, awakeTick))
		}
	})
	return ctx, func() {
		end(context.Canceled)
		timer.Stop()
	}
}

// rest is the part of a limit that is left when some time has passed since the last look.
func rest(left, passed time.Duration) time.Duration { return left - min(passed, 2*awakeTick) }
