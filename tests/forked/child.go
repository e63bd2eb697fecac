// Package forked runs the program of a test again as another process, and drives it by net/rpc over a socket. A child
// can be stopped and killed like any process; it ends when its parent does.
package forked

import (
	"errors"
	"fmt"
	"net"
	"net/rpc"
	"os"
	"os/exec"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// childEnv makes a program a child; its main function or TestMain calls RunChild first.
const childEnv = "TENT_TEST_CHILD"

// childSocket is the descriptor over which a child is driven.
const childSocket = 3

// Patience bounds every call to a child; a longer one hangs.
const Patience = 30 * time.Second

// RunChild reports false in an ordinary process. In a child it serves the methods of the receivers (net/rpc's rules,
// the type's name is the service) until the parent goes away, and returns true.
func RunChild(receivers ...any) bool {
	if os.Getenv(childEnv) == "" {
		return false
	}
	file := os.NewFile(childSocket, "parent")
	parent, err := net.FileConn(file)
	if err == nil {
		err = file.Close()
	}
	server := rpc.NewServer()
	for _, r := range receivers {
		if err == nil {
			err = server.Register(r)
		}
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "forked: child:", err)
		os.Exit(1)
	}
	server.ServeConn(parent)
	return true
}

// Nothing is an argument or a result of a child's method that says nothing.
type Nothing struct{}

// Child is another process of this program. Any goroutine may call it.
type Child struct {
	command *exec.Cmd
	client  *rpc.Client
	waited  sync.Once
	err     error // of the process; read after waited
}

// Change adapts the command that starts a child: its credentials, its namespaces, its environment.
type Change = func(*exec.Cmd)

// As starts a child as another user. That user needs no right to the program's folder. The child is not dumpable at
// first, as after any change of the user.
func As(uid, gid uint32) Change {
	return func(c *exec.Cmd) {
		c.Path, c.Dir = "/proc/self/exe", "/"
		if c.SysProcAttr == nil {
			c.SysProcAttr = &syscall.SysProcAttr{}
		}
		c.SysProcAttr.Credential = &syscall.Credential{Uid: uid, Gid: gid}
	}
}

// Start runs this program again as a child.
func Start(changes ...Change) (*Child, error) {
	return StartWithin(func(start func() error) error { return start() }, changes...)
}

// StartWithin calls within with a function that starts the child, for instance on a thread in another namespace. A
// child is born into the namespaces of the thread that starts it.
func StartWithin(within func(start func() error) error, changes ...Change) (*Child, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	ours, theirs := os.NewFile(uintptr(pair[0]), "child"), os.NewFile(uintptr(pair[1]), "parent")
	defer func() { _, _ = ours.Close(), theirs.Close() }()
	c := &Child{command: exec.Command(self)}
	c.command.Env = append(os.Environ(), childEnv+"=1")
	c.command.ExtraFiles = []*os.File{theirs}
	c.command.Stdout, c.command.Stderr = os.Stderr, os.Stderr
	for _, change := range changes {
		change(c.command)
	}
	err = within(c.command.Start)
	if c.command.SysProcAttr != nil && c.command.SysProcAttr.Credential != nil {
		// It has changed its user while it still shared our memory, which makes us not dumpable.
		err = errors.Join(err, unix.Prctl(unix.PR_SET_DUMPABLE, 1, 0, 0, 0))
	}
	if err != nil {
		return nil, err
	}
	connection, err := net.FileConn(ours)
	if err != nil {
		_ = c.command.Process.Kill()
		_ = c.command.Wait()
		return nil, err
	}
	c.client = rpc.NewClient(connection)
	return c, nil
}

// Call calls a method of the child ("Actor.Fill") and waits.
func (c *Child) Call(method string, arg, result any) error {
	return c.await(c.Begin(method, arg, result), Patience)
}

// Begin calls a method and does not wait; End does.
func (c *Child) Begin(method string, arg, result any) *rpc.Call {
	return c.client.Go(method, arg, result, make(chan *rpc.Call, 1))
}

// End waits for a call that was begun.
func (c *Child) End(call *rpc.Call) error { return c.await(call, Patience) }

func (c *Child) await(call *rpc.Call, limit time.Duration) error {
	timer := time.NewTimer(limit)
	defer timer.Stop()
	select {
	case <-call.Done:
		if call.Error != nil {
			return fmt.Errorf("%s: %w", call.ServiceMethod, call.Error)
		}
		return nil
	case <-timer.C:
		return fmt.Errorf("%s: no answer within %v", call.ServiceMethod, limit)
	}
}

// Pid of the child.
func (c *Child) Pid() int { return c.command.Process.Pid }

// Stop stops the process (SIGSTOP) and returns when it has stopped. SIGCONT makes it go on.
func (c *Child) Stop() error {
	if err := c.Signal(unix.SIGSTOP); err != nil {
		return err
	}
	return unix.Waitid(unix.P_PID, c.Pid(), nil, unix.WSTOPPED, nil)
}

// Signal sends a signal to the process.
func (c *Child) Signal(s unix.Signal) error { return c.command.Process.Signal(s) }

// Kill ends the process, if it has not ended, and waits for it.
func (c *Child) Kill() {
	_ = c.command.Process.Kill() // an error means that it has ended
	_ = c.wait()
	_ = c.client.Close()
}

// Close ends the child in order. It returns an error when the child did not end by itself.
func (c *Child) Close() error {
	_ = c.client.Close() // the child sees the end of its input
	late := time.AfterFunc(Patience, func() { _ = c.command.Process.Kill() })
	err := c.wait()
	if !late.Stop() {
		return fmt.Errorf("child did not end within %v", Patience)
	}
	return err
}

func (c *Child) wait() error {
	c.waited.Do(func() { c.err = c.command.Wait() })
	return c.err
}
