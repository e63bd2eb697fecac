package names

import (
	"bytes"
	"context"
	"errors"
	"net"
	"strconv"
	"sync/atomic"
	"syscall"
)

// Bounds of the answers of Redis. The client makes room for as many bytes or items as an answer announces, and follows
// lists within lists as deep as they go, so an answer could end the process. Ours are of some hundred bytes.
const (
	replyBytes = 64 << 10 // behind a question, until the next one
	replyItems = 1 << 10  // of one list
)

var errReply = errors.New("the answer of Redis is malformed, or too long to be one of ours")

// replies is a connection to Redis by which no answer beyond the bounds comes. It reads RESP (the protocol of Redis,
// versions 2 and 3) as the client does behind it. Attributes are refused: nobody asks for them.
type replies struct {
	net.Conn
	left atomic.Int64 // bytes that may come before the next question

	// Of the goroutine that reads.
	line []byte // that has begun
	skip int    // bytes of a string that are to come, with its end
	over bool   // a wrong answer came
}

// bounded makes connections of which the answers are bounded.
func bounded(dial dialer) dialer {
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		conn, err := dial(ctx, network, address)
		if err != nil {
			return nil, err
		}
		r := &replies{Conn: conn}
		if socket, is := conn.(syscall.Conn); is { // by it the client sees that the other side has hung up
			return struct {
				*replies
				syscall.Conn
			}{r, socket}, nil
		}
		return r, nil
	}
}

type dialer = func(ctx context.Context, network, address string) (net.Conn, error)

// Write begins a question. Its answers may be replyBytes long.
func (r *replies) Write(p []byte) (int, error) {
	r.left.Store(replyBytes)
	return r.Conn.Write(p)
}

// Read hands out bytes that it has looked at. A wrong answer ends the connection: the client goes on to read where it
// has looked for a message of the server's own.
func (r *replies) Read(p []byte) (int, error) {
	if r.over {
		return 0, errReply
	}
	n, err := r.Conn.Read(p)
	if r.left.Add(-int64(n)) < 0 || !r.look(p[:n]) {
		r.over = true
		return 0, errReply
	}
	return n, err
}

// look follows the answers, and reports whether all of them are within the bounds.
func (r *replies) look(p []byte) bool {
	for len(p) > 0 {
		if k := min(r.skip, len(p)); k > 0 {
			r.skip, p = r.skip-k, p[k:]
			continue
		}
		part, rest, whole := bytes.Cut(p, []byte("\n"))
		if r.line, p = append(r.line, part...), rest; len(r.line) > replyBytes {
			return false
		}
		if whole {
			if !r.lineCame(bytes.TrimSuffix(r.line, []byte("\r"))) {
				return false
			}
			r.line = r.line[:0]
		}
	}
	return true
}

// lineCame takes the first line of an answer, or of an item.
func (r *replies) lineCame(line []byte) bool {
	if len(line) == 0 {
		return false
	}
	switch line[0] {
	case '+', '-', ':', '_', ',', '#', '(':
		return true
	case '$', '!', '=': // a string
		n, err := strconv.Atoi(string(line[1:]))
		if r.skip = n + len("\r\n"); n == -1 { // none
			r.skip = 0
		}
		return err == nil && n >= -1 && n <= replyBytes
	case '*', '~', '>', '%': // a list
		n, err := strconv.Atoi(string(line[1:]))
		return err == nil && n >= -1 && n <= replyItems
	}
	return false
}
