// Init is the first program of the test guest: it makes the root, lays the rails, runs one command and powers off.
//
// The guest is a Linux kernel that runs as a program (User-Mode Linux). Its root is the host's, read-only by hostfs,
// below a layer in memory that takes the writes and is lost. tools/guest.py starts it with ctl=FOLDER, which is mounted
// at /ctl and may be written:
//
//	order.json   the command (tools/guest.py writes it, order below)
//	output       of the command, both streams
//	status       its exit status, written last; without it the guest has died
package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/tent-engine/tent/tests/roce"
)

// order is the content of order.json.
type order struct {
	Command     []string
	Folder      string
	Environment []string // as os.Environ has it
	Rails       int
}

const control = "/ctl"

// Statuses for a command that could not be run, as a shell has them, and for a guest that could not be made.
const (
	notFound = 127
	noGuest  = 125
)

func main() {
	status, err := run(os.Getenv("ctl")) // the kernel hands us the words of its command line that it does not know
	if err != nil {
		fmt.Println("init:", err)
		status = noGuest
	}
	if err := leave(status); err != nil {
		fmt.Println("init:", err)
	}
	_ = unix.Reboot(unix.LINUX_REBOOT_CMD_POWER_OFF) // or the kernel panics, which ends it as well
}

func run(folder string) (status int, err error) {
	if err := makeRoot(folder); err != nil {
		return 0, err
	}
	text, err := os.ReadFile(filepath.Join(control, "order.json"))
	if err != nil {
		return 0, err
	}
	var o order
	if err := json.Unmarshal(text, &o); err != nil {
		return 0, err
	}
	if o.Rails > 0 {
		if err := roce.Lay(o.Rails); err != nil {
			return 0, err
		}
	}
	endless := unix.Rlimit{Cur: unix.RLIM_INFINITY, Max: unix.RLIM_INFINITY}
	if err := unix.Setrlimit(unix.RLIMIT_MEMLOCK, &endless); err != nil {
		return 0, err
	}
	return carryOut(&o)
}

// mount of a kind of file system; folders are made where they are missing.
type mount struct{ kind, at, data string }

// makeRoot puts a layer in memory over the host's files and makes that the root.
func makeRoot(folder string) error {
	const layer = "/mnt" // every Debian has it, and the host's stays as it is
	if err := mountAll(mount{"tmpfs", layer, "mode=755"}); err != nil {
		return err
	}
	upper, work, root := layer+"/upper", layer+"/work", layer+"/root"
	if err := errors.Join(os.Mkdir(upper, 0o755), os.Mkdir(work, 0o755)); err != nil {
		return err
	}
	over := fmt.Sprintf("lowerdir=/,upperdir=%s,workdir=%s", upper, work)
	if err := mountAll(mount{"overlay", root, over}); err != nil {
		return err
	}
	if err := errors.Join(unix.Chroot(root), os.Chdir("/")); err != nil {
		return err
	}
	return mountAll(mount{"proc", "/proc", ""}, mount{"sysfs", "/sys", ""}, mount{"devtmpfs", "/dev", ""},
		mount{"devpts", "/dev/pts", ""}, mount{"tmpfs", "/dev/shm", ""}, mount{"tmpfs", "/run", ""},
		mount{"hostfs", control, folder})
}

func mountAll(list ...mount) error {
	for _, m := range list {
		if err := os.MkdirAll(m.at, 0o755); err != nil {
			return err
		}
		if err := unix.Mount(m.kind, m.at, m.kind, 0, m.data); err != nil {
			return fmt.Errorf("mount %s at %s: %w", m.kind, m.at, err)
		}
	}
	return nil
}

// carryOut runs the command and waits for it. Init also waits for every process that lost its parent.
func carryOut(o *order) (status int, err error) {
	output, err := os.OpenFile(filepath.Join(control, "output"), os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		return 0, err
	}
	null, err := os.Open(os.DevNull)
	if err != nil {
		return 0, err
	}
	for _, entry := range o.Environment {
		if name, value, found := strings.Cut(entry, "="); found {
			if err := os.Setenv(name, value); err != nil {
				return 0, err
			}
		}
	}
	if err := errors.Join(os.Chdir(o.Folder), os.Setenv(roce.GuestEnv, fmt.Sprint(o.Rails))); err != nil {
		return 0, err
	}
	program, err := exec.LookPath(o.Command[0])
	if err == nil {
		files := []uintptr{null.Fd(), output.Fd(), output.Fd()}
		var pid int
		pid, err = syscall.ForkExec(program, o.Command, &syscall.ProcAttr{Env: os.Environ(), Files: files})
		if err == nil {
			return wait(pid)
		}
	}
	_, err = fmt.Fprintln(output, "init:", err)
	return notFound, err
}

// wait returns the exit status of a child as a shell does.
func wait(child int) (int, error) {
	for {
		var status unix.WaitStatus
		pid, err := unix.Wait4(-1, &status, 0, nil)
		switch {
		case err != nil && !errors.Is(err, unix.EINTR):
			return 0, err
		case pid != child:
		case status.Signaled():
			return 128 + int(status.Signal()), nil
		default:
			return status.ExitStatus(), nil
		}
	}
}

// leave writes the status as a whole.
func leave(status int) error {
	path := filepath.Join(control, "status")
	if err := os.WriteFile(path+".new", []byte(fmt.Sprint(status)), 0o600); err != nil {
		return err
	}
	return os.Rename(path+".new", path)
}
