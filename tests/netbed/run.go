package netbed

import (
	"bytes"
	"fmt"
	"os/exec"
	"strings"

	"github.com/tent-engine/tent/tests/forked"
)

// Start runs this program again as a child in the host.
func (h *Host) Start() (*forked.Child, error) { return forked.StartWithin(h.net.within) }

// Run runs another program in the host to its end. The error has its output.
func (h *Host) Run(name string, args ...string) error {
	return h.net.within(func() error {
		out, err := exec.Command(name, args...).CombinedOutput()
		if err != nil {
			return fmt.Errorf("%s %s: %w: %s", name, strings.Join(args, " "), err, bytes.TrimSpace(out))
		}
		return nil
	})
}
