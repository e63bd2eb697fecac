package netbed

import (
	"context"
	"fmt"
	"time"

	"github.com/tent-engine/tent/gocore/config"
	"github.com/tent-engine/tent/gocore/dispatch"
	"github.com/tent-engine/tent/gocore/engine"
	"github.com/tent-engine/tent/transports/all"
)

// Patience bounds the waits of tests with engines in processes of their own; a longer one hangs.
const Patience = 20 * time.Second

// OpenEngine opens an engine of this process, with the transports and platforms of this build and settings by key.
func OpenEngine(settings ...any) (*engine.Engine, error) {
	c, err := config.Load(config.Options{Transports: all.Transports()}, settings...)
	if err != nil {
		return nil, err
	}
	return engine.Open(context.Background(), engine.Options{Config: c,
		Transports: engine.Plugs(all.Factories()...), Platforms: all.Platforms()})
}

// Move carries out one request and returns how it ended.
func Move(e *engine.Engine, r *engine.Request) (dispatch.Summary, error) {
	id, err := e.Move(r)
	if err != nil {
		return dispatch.Summary{}, err
	}
	if !e.Wait(id, Patience).Terminal() {
		return dispatch.Summary{}, fmt.Errorf("no end within %v", Patience)
	}
	s, err := e.Summary(id)
	if err == nil {
		err = e.FreeBatch(id)
	}
	return s, err
}
