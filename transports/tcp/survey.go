package tcp

import (
	"fmt"
	"net"
	"os"

	"github.com/tent-engine/tent/gocore/nic"
	"github.com/tent-engine/tent/gocore/transport"
)

var _ transport.Surveyor = Factory{}

// Survey lists the interfaces that are up with their addresses and speeds, see transport.Surveyor.
func (Factory) Survey() (lines []string) {
	interfaces, err := net.Interfaces()
	if err != nil {
		return []string{"the interfaces cannot be listed: " + err.Error()}
	}
	for _, i := range interfaces {
		addresses, err := i.Addrs()
		if i.Flags&net.FlagUp == 0 || err != nil {
			continue
		}
		for _, a := range addresses {
			if n, is := a.(*net.IPNet); is && !n.IP.IsLinkLocalUnicast() {
				lines = append(lines, fmt.Sprintf("%s on %s%s", n, i.Name, speedOf(i.Name)))
			}
		}
	}
	return lines
}

// speedOf returns the speed of an interface in words, "" where the kernel does not know it.
func speedOf(name string) string {
	if n, there := nic.Read(os.DirFS("/"), name); there && n.SpeedMbps > 0 {
		return fmt.Sprintf(", %g Gbit/s", float64(n.SpeedMbps)/1000)
	}
	return ""
}
