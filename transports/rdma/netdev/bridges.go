package netdev

import (
	"encoding/binary"
	"io/fs"
	"path"
	"slices"
	"strings"

	"github.com/tent-engine/tent/gocore/nic"
)

// Bridge is a PCI bridge above a device.
type Bridge struct {
	Address   string // "0000:00:01.0"
	Redirects bool   // its Access Control Services send requests between devices up to the root
}

// Bridges lists the bridges above a device, the root's port first. known says that the settings of all could be read:
// the kernel shows them to root alone.
func Bridges(root fs.FS, device string) (list []Bridge, known bool) {
	bus := nic.BusPath(root, function(root, device))
	if bus == "" {
		return nil, false // a device without a bus, as Soft-RoCE's
	}
	steps := strings.Split(bus, "/")
	known = true
	for i, step := range steps[:len(steps)-1] {
		if !nic.IsPCI(step) {
			continue
		}
		config, _ := fs.ReadFile(root, path.Join("sys/devices", path.Join(steps[:i+1]...), "config")) // unknown
		redirects, read := redirects(config)
		known = known && read
		list = append(list, Bridge{step, redirects})
	}
	return slices.Clip(list), known
}

// Places in the configuration space, by the PCI Express Base Specification. Extended capabilities are a list from 0x100
// on. The control register of Access Control Services (7.7.11) lies 6 bytes behind its header.
const (
	extended       = 0x100
	acs            = 0x0d
	acsControl     = 6
	requestsUp     = 1 << 2 // P2P Request Redirect
	completionsUp  = 1 << 3 // P2P Completion Redirect
	headerBytes    = 4
	capabilityMost = 48 // a list that is longer goes round
)

// redirects reads the control register of a bridge; read says that the whole space was there.
func redirects(config []byte) (is, read bool) {
	if len(config) <= extended {
		return false, false
	}
	at := extended
	for range capabilityMost {
		if at < extended || at+acsControl+2 > len(config) {
			break
		}
		header := binary.LittleEndian.Uint32(config[at : at+headerBytes])
		if header&0xffff == acs {
			control := binary.LittleEndian.Uint16(config[at+acsControl:])
			return control&(requestsUp|completionsUp) != 0, true
		}
		at = int(header >> 20)
	}
	return false, true
}
