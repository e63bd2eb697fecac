package pybind

import (
	"context"
	"encoding/json"
	"time"

	"github.com/tent-engine/tent/gocore/engine"
	"github.com/tent-engine/tent/gocore/errs"
)

// listOf reads a list of texts in JSON; "" is none, and nil.
func listOf(what, text string) (list []string, err error) {
	if text == "" {
		return nil, nil
	}
	if err := json.Unmarshal([]byte(text), &list); err != nil {
		return nil, errs.Wrap(errs.InvalidArgument, what, err)
	}
	return list, nil
}

// Peers lists the engines that have called, or that are open, in JSON.
func Peers(id int64) (string, error) {
	return on(id, func(e *engine.Engine) (string, error) {
		list := []map[string]any{}
		now := time.Now()
		for _, p := range e.Peers() {
			row := map[string]any{"address": p.Peer.Address, "name": p.Peer.Name, "id": p.Peer.ID.String(),
				"identity": p.Peer.Identity, "connected": p.Connected, "open": p.Open, "seen_s": nil, "expires_s": nil}
			if !p.Seen.IsZero() {
				row["seen_s"] = now.Sub(p.Seen).Seconds()
			}
			if !p.Until.IsZero() {
				row["expires_s"] = p.Until.Sub(now).Seconds()
			}
			list = append(list, row)
		}
		return toJSON(list), nil
	})
}

// Disconnect ends the access of peers and returns their number; see engine.Disconnect.
func Disconnect(id int64, who string, timeoutMs int64) (int64, error) {
	return within(id, timeoutMs, func(ctx context.Context, e *engine.Engine) (int64, error) {
		count, err := e.Disconnect(ctx, who)
		return int64(count), err
	})
}

// ReloadSecurity reads the files of mode mtls again, and returns 1 if something changed. Allow is a JSON list for
// security/allow, "" to leave it.
func ReloadSecurity(id int64, allow string, timeoutMs int64) (int64, error) {
	return within(id, timeoutMs, func(ctx context.Context, e *engine.Engine) (int64, error) {
		list, err := listOf("allow", allow)
		if err != nil {
			return 0, err
		}
		changed, err := e.ReloadSecurity(ctx, list)
		return one(changed), err
	})
}
