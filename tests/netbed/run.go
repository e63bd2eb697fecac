package netbed

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/tent-engine/tent/tests/forked"
)

// Start runs this program again as a child in the host.
func (h *Host) Start() (*forked.Child, error) { return forked.StartWithin(h.net.within) }

// StartOnOtherMachine is Start with another boot id: to its programs, the child is on a machine of its own.
func (h *Host) StartOnOtherMachine() (*forked.Child, error) {
	return forked.StartWithin(func(start func() error) error {
		return h.net.within(func() error {
			if err := otherBootID(); err != nil {
				return err
			}
			return start()
		})
	})
}

// otherBootID covers the kernel's boot id for the calling thread and its children.
func otherBootID() error {
	if err := unix.Unshare(unix.CLONE_NEWNS); err != nil {
		return fmt.Errorf("mount namespace: %w", err)
	}
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("private mounts: %w", err)
	}
	id, err := os.ReadFile("/proc/sys/kernel/random/uuid")
	if err != nil {
		return err
	}
	file, err := os.CreateTemp("", "boot_id")
	if err != nil {
		return err
	}
	defer func() { _ = os.Remove(file.Name()) }() // the mount keeps it
	_, err = file.Write(id)
	if err = errors.Join(err, file.Close()); err != nil {
		return err
	}
	return unix.Mount(file.Name(), "/proc/sys/kernel/random/boot_id", "", unix.MS_BIND, "")
}

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

// EnterAlone moves the calling goroutine into a network of its own, where an address leads to itself and is not
// loopback. The thread ends with the goroutine; children that it starts are born into the network.
func EnterAlone(address string) error {
	runtime.LockOSThread()
	if os.Geteuid() != 0 {
		return fmt.Errorf("%w: it needs root", ErrUnavailable)
	}
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		return fmt.Errorf("%w: %w", ErrUnavailable, err)
	}
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		return err
	}
	given, err := netlink.ParseAddr(address + "/32")
	if err != nil {
		return err
	}
	return errors.Join(netlink.LinkSetUp(lo), netlink.AddrAdd(lo, given))
}

// StartOnOtherMachine runs this program again as a child that counts as on a machine of its own, in this network.
func StartOnOtherMachine(changes ...forked.Change) (*forked.Child, error) {
	return forked.StartWithin(func(start func() error) error {
		return onThread(func() error {
			if err := otherBootID(); err != nil {
				return err
			}
			return start()
		})
	}, changes...)
}
