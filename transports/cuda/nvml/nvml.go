//go:build cgo

package nvml

/*
#cgo linux LDFLAGS: -ldl
#include "load.h"
*/
import "C"

import (
	"fmt"
	"strings"
	"sync"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/tent-engine/tent/gocore/device"
	"github.com/tent-engine/tent/gocore/errs"
)

// linksMax bounds the NVLinks of a GPU that are asked for (NVML_NVLINK_MAX_LINKS).
const linksMax = 36

// GPU has the library's facts about one GPU of the machine, also one that this process does not see.
type GPU struct {
	PCI    string // "0000:1b:00.0"
	Links  int    // active NVLinks
	Fabric *device.Fabric
	Apart  string   // why Fabric is nil
	Ways   []string // to the GPUs of the list, see device.Wiring
}

// reading serialises the library's start and end: the slots are the process's.
var reading sync.Mutex

// Read asks the library once, and closes it. An error says why it cannot be used. Facts that a driver does not give are
// left out, and so are GPUs that it lets nobody ask about: its count has those without permission, too, as in a
// container that has some of the host's (NVML API reference, nvmlDeviceGetCount_v2), and those that are lost.
func Read() ([]GPU, error) {
	reading.Lock()
	defer reading.Unlock()
	if err := load(); err != nil {
		return nil, err
	}
	lib := nvml.New(nvml.WithLibraryPath(C.GoString(C.tent_nvml_library())))
	if r := lib.Init(); r != nvml.SUCCESS {
		return nil, failed("nvmlInit", r)
	}
	defer func() { _ = lib.Shutdown() }() // it was opened for this alone
	count, r := lib.DeviceGetCount()
	if r != nvml.SUCCESS {
		return nil, failed("nvmlDeviceGetCount", r)
	}
	var handles []nvml.Device
	var gpus []GPU
	var refused error
	for i := range count {
		handle, r := lib.DeviceGetHandleByIndex(i)
		if r != nvml.SUCCESS {
			refused = failed(fmt.Sprintf("nvmlDeviceGetHandleByIndex(%d)", i), r)
			continue
		}
		handles, gpus = append(handles, handle), append(gpus, describe(handle))
	}
	if len(gpus) == 0 {
		return nil, refused
	}
	for i := range gpus {
		for k := range gpus {
			gpus[i].Ways = append(gpus[i].Ways, way(handles, gpus, i, k))
		}
	}
	return gpus, nil
}

// load fills the slots.
func load() error {
	var why [512]C.char
	if C.tent_nvml_load(&why[0], C.size_t(len(why))) < 0 {
		return errs.New(errs.DeviceNotFound, "nvml", "no NVML: %s", C.GoString(&why[0]))
	}
	return nil
}

func failed(call string, r nvml.Return) *errs.Error {
	return errs.New(errs.DeviceNotFound, "nvml", "%s: error %d of NVML", call, int32(r))
}

// describe asks for the facts of one GPU.
func describe(d nvml.Device) (g GPU) {
	if pci, r := d.GetPciInfo(); r == nvml.SUCCESS {
		g.PCI = address(pci.BusId[:])
	}
	for link := range linksMax {
		state, r := d.GetNvLinkState(link)
		if r == nvml.ERROR_INVALID_ARGUMENT || r == nvml.ERROR_NOT_SUPPORTED || r == nvml.ERROR_FUNCTION_NOT_FOUND {
			break // it has no more
		}
		if r == nvml.SUCCESS && state == nvml.FEATURE_ENABLED {
			g.Links++
		}
	}
	g.Fabric, g.Apart = fabric(d)
	return g
}

// address makes the kernel's form "0000:1b:00.0" of NVML's "00000000:1B:00.0".
func address[T ~int8 | ~uint8](text []T) string {
	var b strings.Builder
	for _, c := range text {
		if c == 0 {
			break
		}
		b.WriteByte(byte(c))
	}
	domain, rest, is := strings.Cut(strings.ToLower(b.String()), ":")
	if is && len(domain) > 4 {
		domain = domain[len(domain)-4:]
	}
	return domain + ":" + rest
}

// fabricReady is NVML_GPU_FABRIC_STATE_COMPLETED.
const fabricReady = 3

// fabric returns the domain that a GPU has joined, or why it has joined none. Drivers before 12.4 have the first form
// of the answer alone.
func fabric(d nvml.Device) (*device.Fabric, string) {
	f, state, status := device.Fabric{}, uint8(0), uint32(0)
	if info, r := d.GetGpuFabricInfoV().V2(); r == nvml.SUCCESS {
		f, state, status = device.Fabric{Cluster: info.ClusterUuid, Clique: info.CliqueId}, info.State, info.Status
	} else if info, r := d.GetGpuFabricInfo(); r == nvml.SUCCESS {
		f, state, status = device.Fabric{Cluster: info.ClusterUuid, Clique: info.CliqueId}, info.State, info.Status
	} else {
		return nil, fmt.Sprintf("NVML names none (error %d)", int32(r))
	}
	switch {
	case state != fabricReady:
		return nil, fmt.Sprintf("the fabric manager has not registered it (state %d of NVML)", state)
	case status != 0:
		return nil, fmt.Sprintf("the fabric manager could not register it (error %d of NVML)", status)
	case f.Cluster == [16]byte{}:
		return nil, "its domain ends at this host: the cluster has no UUID"
	}
	return &f, ""
}

// levels of nvmlGpuTopologyLevel_t in the words of `nvidia-smi topo`.
var levels = map[nvml.GpuTopologyLevel]string{nvml.TOPOLOGY_INTERNAL: "PIX", nvml.TOPOLOGY_SINGLE: "PIX",
	nvml.TOPOLOGY_MULTIPLE: "PXB", nvml.TOPOLOGY_HOSTBRIDGE: "PHB", nvml.TOPOLOGY_NODE: "NODE",
	nvml.TOPOLOGY_SYSTEM: "SYS"}

// way says how two GPUs are connected. NVLinks may lead to a switch, so whether they lead to the other GPU is asked for
// by pair, and their number is that of the GPU that has fewer.
func way(handles []nvml.Device, gpus []GPU, i, k int) string {
	if i == k {
		return ""
	}
	links := min(gpus[i].Links, gpus[k].Links)
	if status, r := handles[i].GetP2PStatus(handles[k], nvml.P2P_CAPS_INDEX_NVLINK); links > 0 && r == nvml.SUCCESS &&
		status == nvml.P2P_STATUS_OK {
		return fmt.Sprintf("NV%d", links)
	}
	if level, r := handles[i].GetTopologyCommonAncestor(handles[k]); r == nvml.SUCCESS {
		return levels[level]
	}
	return ""
}
