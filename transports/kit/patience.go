package kit

import "time"

// Patience is the interval at which a detached link asks a peer that does not answer. It is a sixteenth of the time
// that the link has asked for, half a minute at most. Of such peers, as those on hosts that were taken away, there may
// be any number, and each question takes a connection.
func Patience(asked time.Duration) time.Duration { return min(asked/16, 30*time.Second) }
