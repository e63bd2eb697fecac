package gds

import (
	"context"
	"os"

	"github.com/tent-engine/tent/gocore/transport"
	"github.com/tent-engine/tent/transports/cuda/cufile"
	"github.com/tent-engine/tent/transports/file"
)

// Name stands in settings, metrics and errors.
const Name = "gds"

// Factory makes the transport; see transport.Factory.
type Factory struct{}

var (
	_ transport.Factory    = Factory{}
	_ transport.Configured = Factory{}
	_ transport.Surveyor   = Factory{}
	_ transport.Described  = Factory{}
)

// Name returns "gds".
func (Factory) Name() string { return Name }

// Settings returns the struct with the keys as tags; see transport.Configured.
func (Factory) Settings() any { return file.Settings{} }

// disks is where udev describes them, to cuFile also. Containers have it where somebody has mounted it.
const disks = "/run/udev"

// Check says why cuFile cannot be used here, or nil. It loads the library, and does not open its driver.
func (Factory) Check() error { return cufile.Check() }

// Open opens the library's driver, once a process, and starts the transport. config is file.Settings, a pointer to them
// or nil. A driver that does not open is DeviceNotFound, with its reason.
func (Factory) Open(_ context.Context, config any, host transport.Host, sink transport.Sink) (transport.Transport,
	error) {
	settings, err := file.Settled(config, Name)
	if err != nil {
		return nil, err
	}
	facts, err := cufile.Driver()
	if err != nil {
		return nil, err
	}
	return file.OpenBy(Name, settings, newLibrary(facts, settings.BatchDepth), host, sink), nil
}

// Survey describes the library and its mode, see transport.Surveyor. It opens the library's driver.
func (Factory) Survey() []string {
	facts, err := cufile.Driver()
	if err != nil {
		return []string{"its driver does not open: " + err.Error()}
	}
	lines := []string{facts.String()}
	if _, err := os.Stat(disks); err != nil {
		lines = append(lines, disks+" is not here: cuFile takes no files of disks without it, and others carry them")
	}
	if !facts.Native {
		lines = append(lines, "routes of gds come behind those that are staged through memory of the host")
	}
	if !facts.Batches {
		lines = append(lines, "it has no batches: threads wait for each run")
	}
	return lines
}

// Describe implements transport.Described.
func (Factory) Describe() (needs string, like transport.Transport) {
	return "a CUDA driver of 11.4 or newer, and cuFile (`libcufile.so.0`); `transports/gds/enable` switches it on",
		file.DescribeBy(Name, newLibrary(&cufile.Facts{Native: true}, 0))
}
