package meta

import (
	"crypto/sha256"
	"encoding/hex"
	"net"
	"os"
	"strings"
	"sync"
)

// MachineID names the running kernel: equal for two processes exactly when they could share memory. The boot id says
// just that: it is drawn at boot, and every container and network namespace of the host reads the same one. It is not
// mixed with /etc/machine-id, which differs between two containers of one host (and of one pod, which share 127.0.0.1),
// and is the same in every container of one image; that file, then the host's name with its hardware addresses, stand
// in only where /proc does not give a boot id. The id is hashed: it crosses the network, and machine-id(5) asks not to
// show it to strangers.
func MachineID() string { return machineID() }

var machineID = sync.OnceValue(func() string {
	return machineIDFrom(os.ReadFile, hardwareIdentity)
})

// machineIDFrom takes its sources as arguments for the tests.
func machineIDFrom(read func(string) ([]byte, error), hardware func() string) string {
	for _, file := range []string{"/proc/sys/kernel/random/boot_id", "/etc/machine-id", "/var/lib/dbus/machine-id"} {
		content, err := read(file)
		text := strings.TrimSpace(string(content))
		if err == nil && isIdentity(text) {
			return digest(file + "\n" + text)
		}
	}
	return digest("hardware\n" + hardware())
}

// isIdentity refuses the contents of these files before the first boot ("uninitialized", nothing, zeroes).
func isIdentity(text string) bool {
	digits := strings.ReplaceAll(text, "-", "")
	raw, err := hex.DecodeString(digits)
	return err == nil && len(raw) == 16 && strings.Trim(digits, "0") != ""
}

func hardwareIdentity() string {
	name, _ := os.Hostname() // "" is a fine part of the last resort
	parts := []string{name}
	interfaces, _ := net.Interfaces()
	for _, each := range interfaces {
		if len(each.HardwareAddr) > 0 && each.Flags&net.FlagLoopback == 0 {
			parts = append(parts, each.HardwareAddr.String())
		}
	}
	return strings.Join(parts, "\n")
}

// NetworkID names the network namespace of this process: equal for two processes exactly when 127.0.0.1 leads from one
// to the other. Containers of one machine share its MachineID and, as a rule, not this.
func NetworkID() string { return networkID() }

var networkID = sync.OnceValue(func() string {
	namespace, err := os.Readlink("/proc/self/ns/net")
	if err != nil {
		return MachineID() // a kernel without namespaces has one network
	}
	return digest(MachineID() + "\n" + namespace)
})

func digest(text string) string {
	sum := sha256.Sum256([]byte("tent machine\n" + text))
	return hex.EncodeToString(sum[:16])
}
