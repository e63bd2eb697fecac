package pybind

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tent-engine/tent/gocore/device"
	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/mem"
)

// sick is a platform with a device that works and one that is lost.
type sick struct{ device.Platform }

func (sick) Name() string   { return "sick" }
func (sick) Kind() mem.Kind { return mem.Cuda }
func (sick) Check() error   { return nil }

func (sick) Devices() ([]device.Info, error) {
	end := errs.New(errs.CudaError, "cuda.copy", "cuda:1: an illegal address").WithHint("restart the process")
	return []device.Info{{Name: "fine", Node: -1}, {Name: "ill", Node: 1, Lost: end}}, nil
}

func TestDoctorNamesTheErrorThatHasEndedADevice(t *testing.T) {
	require.Equal(t, finding{Name: "sick", Found: []string{"cuda:0: fine, PCI ",
		"cuda:1: ill, PCI , NUMA node 1, lost: cuda.copy: cuda:1: an illegal address; restart the process"}},
		devicesOf(sick{}))
}
