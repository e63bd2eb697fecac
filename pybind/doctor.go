package pybind

import (
	"os"
	"runtime"
	"strings"

	"github.com/tent-engine/tent/gocore/share"
	"github.com/tent-engine/tent/transports/all"
)

// check is one line of tent doctor.
type check struct {
	Name    string `json:"name"`
	OK      bool   `json:"ok"`
	Reason  string `json:"reason"`
	Matters string `json:"matters"`
}

// doctor looks at the machine's resources. It starts nothing and needs no engine.
func doctor() (list []check) {
	for _, factory := range all.Factories() {
		c := check{Name: "transport " + factory.Name(), OK: true,
			Matters: "a way to move bytes; more than one lets transfers survive the loss of one"}
		if reason := factory.Check(); reason != nil {
			c.OK, c.Reason = false, reason.Error()
		}
		list = append(list, c)
	}
	congestion := read("/proc/sys/net/ipv4/tcp_available_congestion_control")
	list = append(list,
		check{"processor cores", runtime.NumCPU() > 1, "there is one",
			"a waiter can look for its own completions only beside a second core"},
		check{"congestion control", strings.Contains(congestion, "cubic") || strings.Contains(congestion, "reno"),
			"available: " + congestion, "bbr paces even on loopback, which halves the rate of a transfer on one host"},
		check{"RDMA devices", exists("/sys/class/infiniband"), "/sys/class/infiniband does not exist",
			"RDMA moves bytes without the processor"},
		check{"NVIDIA driver", exists("/proc/driver/nvidia/version"), "/proc/driver/nvidia/version does not exist",
			"memory of GPUs can be moved only with it"},
		check{"io_uring", read("/proc/sys/kernel/io_uring_disabled") == "0", "kernel.io_uring_disabled is not 0",
			"files are read and written with less processor time"})
	if err := share.Check(); err != nil {
		list = append(list, check{"shared memory", false, err.Error(),
			"processes of a host share time slots and the load of NICs in it (shared_quota_shm_path)"})
	} else {
		list = append(list, check{Name: "shared memory", OK: true})
	}
	for i := range list {
		if list[i].OK {
			list[i].Reason = ""
		}
	}
	return list
}

func exists(path string) bool { _, err := os.Stat(path); return err == nil }

func read(path string) string {
	text, err := os.ReadFile(path)
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(text))
}
