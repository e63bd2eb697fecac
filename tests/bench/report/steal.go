package report

import (
	"fmt"
	"os"
	"strconv"
	"strings"
)

// Steal measures the share of its time that a virtual machine did not get. A measurement with more than a few percent
// of it says little about the program. The zero value counts from the start of the machine.
type Steal struct{ stolen, all uint64 }

// Share is the part of the time since the last call that the host gave to others; 0 where the kernel does not say.
func (s *Steal) Share() float64 {
	before := *s
	text, err := os.ReadFile("/proc/stat")
	if err != nil {
		return 0
	}
	line, _, _ := strings.Cut(string(text), "\n") // cpu user nice system idle iowait irq softirq steal guest guest_nice
	s.all = 0
	for i, word := range strings.Fields(line)[1:] {
		n, err := strconv.ParseUint(word, 10, 64)
		if i > 7 || err != nil { // guests are counted among users
			break
		}
		s.all += n
		if i == 7 {
			s.stolen = n
		}
	}
	if s.all <= before.all {
		return 0
	}
	return float64(s.stolen-before.stolen) / float64(s.all-before.all)
}

// String is Share as a text.
func (s *Steal) String() string {
	return fmt.Sprintf("%.1f %% of the time stolen by the host", 100*s.Share())
}
