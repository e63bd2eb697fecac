package fds

import (
	"context"
	"errors"
	"net"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tent-engine/tent/gocore/errs"
)

// extraMax is the room for descriptors that nobody asked for; a server that sends some is not ours.
const extraMax = 4

// Fetch returns the descriptor of a ticket, which the caller closes. It waits for a second at most. Owner is the
// process that gave the ticket: another one that listens at its name gets nothing.
//
// Errors: PeerUnreachable when nobody listens, PermissionDenied when the owner refuses or somebody else answers,
// Protocol for any other answer.
func Fetch(ctx context.Context, t Ticket, owner Process) (fd int, err error) {
	ctx, cancel := context.WithTimeout(ctx, askLimit)
	defer cancel()
	var dialer net.Dialer
	dialed, err := dialer.DialContext(ctx, "unixpacket", address(t.Server).Name)
	if err != nil {
		return -1, failed(errs.PeerUnreachable, "nobody passes descriptors there: %v", err)
	}
	defer dialed.Close()
	c := dialed.(*net.UnixConn)
	if by, err := processOf(c); err != nil || by != owner {
		return -1, failed(errs.PermissionDenied, "process %d of user %d answers instead of %d of %d", by.PID, by.UID,
			owner.PID, owner.UID)
	}
	until, _ := ctx.Deadline()
	_ = c.SetDeadline(until)
	stop := context.AfterFunc(ctx, func() { _ = c.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	if _, err := c.Write(t.Key[:]); err != nil {
		return -1, failed(errs.PeerUnreachable, "%v", err)
	}
	return receive(c)
}

// receive takes the answer. All descriptors that came with a wrong one are closed.
func receive(c *net.UnixConn) (int, error) {
	var answer [2]byte
	rights := make([]byte, unix.CmsgSpace(4*extraMax))
	n, m, flags, _, err := c.ReadMsgUnix(answer[:], rights)
	came := descriptors(rights[:max(m, 0)])
	switch {
	case err != nil && !errors.Is(err, net.ErrClosed):
		err = failed(errs.PeerUnreachable, "no answer: %v", err)
	case n == 1 && answer[0] == answerRefused && len(came) == 0:
		err = failed(errs.PermissionDenied, "the owner refuses: the offer was withdrawn, or is another process's")
	case n != 1 || answer[0] != answerPassed || len(came) != 1 || flags&unix.MSG_CTRUNC != 0:
		err = failed(errs.Protocol, "an answer of %d bytes with %d descriptors", n, len(came))
	default:
		return came[0], nil
	}
	for _, fd := range came {
		_ = unix.Close(fd)
	}
	return -1, err
}

func descriptors(control []byte) (list []int) {
	messages, err := unix.ParseSocketControlMessage(control)
	if err != nil {
		return nil
	}
	for i := range messages {
		if fds, err := unix.ParseUnixRights(&messages[i]); err == nil {
			list = append(list, fds...)
		}
	}
	return list
}

func failed(code errs.Code, format string, args ...any) error {
	return errs.New(code, "fds.fetch", format, args...).WithScope(errs.ScopeLink, errs.SideRemote)
}
