//go:build !cgo

package cufile

import (
	"time"

	"github.com/tent-engine/tent/gocore/errs"
)

func absent() error {
	return errs.New(errs.DeviceNotFound, "cufile", "this program was built without cgo, which loads the library")
}

// Check returns the reason.
func Check() error { return absent() }

// Driver returns the reason.
func Driver() (*Facts, error) { return nil, absent() }

// Adopt returns the reason.
func Adopt(int) (uintptr, error) { return 0, absent() }

// Drop has nothing to end.
func Drop(uintptr) {}

// Keep returns the reason.
func Keep(int, uintptr, uint64) error { return absent() }

// Unkeep returns the reason.
func Unkeep(int, uintptr, uint64) error { return absent() }

// Renew returns the reason.
func Renew(int, uintptr, uint64) (refused, err error) { return nil, absent() }

// Move returns the reason.
func Move(*Run) (uint64, error) { return 0, absent() }

// Batches have no runs.
type Batches struct{}

// NewBatches makes room for none.
func NewBatches(int) *Batches { return &Batches{} }

// Post returns the reason.
func (*Batches) Post(*Run, int) error { return absent() }

// Collect has nothing to return.
func (*Batches) Collect([]Ended, time.Duration) int { return 0 }

// Close has nothing to give back.
func (*Batches) Close() {}
