package pybind

import (
	"context"
	"time"

	"github.com/tent-engine/tent/gocore/engine"
)

// swapWithin bounds the closing of one transport and the opening of another.
const swapWithin = 5 * time.Second

// InjectFaults adds the faults of a text in the language of transports/faulty to those of an engine, or heals. It is
// refused unless the engine was opened with allow_faults.
func InjectFaults(id int64, text string) (int64, error) {
	return with(id, func(o opened) (int64, error) {
		return 0, o.faults.Apply(text)
	})
}

// Faults returns the faults that are injected into an engine now, in the language.
func Faults(id int64) (string, error) {
	return with(id, func(o opened) (string, error) {
		return o.faults.String(), nil
	})
}

// FaultsStruck lists in JSON the faults that were injected into an engine so far: text, hits, unused_ok of each.
func FaultsStruck(id int64) (string, error) {
	return with(id, func(o opened) (string, error) {
		type count struct {
			Text     string `json:"text"`
			Hits     uint64 `json:"hits"`
			UnusedOK bool   `json:"unused_ok"`
		}
		counts := []count{}
		for _, c := range o.faults.Struck() {
			counts = append(counts, count(c))
		}
		return toJSON(counts), nil
	})
}

// SwapTransportForTest puts another transport of this build into a slot of a fresh engine, under the slot's name; see
// engine.SwapTransportForTest. It is refused unless the engine was opened with allow_faults.
func SwapTransportForTest(id int64, slot, name string) (int64, error) {
	return with(id, func(o opened) (int64, error) {
		factory, err := o.faults.Stand(slot, name)
		if err != nil {
			return 0, err
		}
		ctx, cancel := context.WithTimeout(context.Background(), swapWithin)
		defer cancel()
		plug := engine.Plug{Factory: factory, Settings: o.engine.Config().SettingsOf(name)}
		return 0, o.engine.SwapTransportForTest(ctx, slot, plug)
	})
}
