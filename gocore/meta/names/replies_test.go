package names

import (
	"context"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"google.golang.org/grpc"
)

// answering is a server that knows GET alone, and answers it with one text.
func answering(t *testing.T, answer string) (address string) {
	t.Helper()
	return server(t, func(conn net.Conn) {
		for question := make([]byte, 4096); ; {
			n, err := conn.Read(question)
			if err != nil {
				return
			}
			text := answer
			if asked := string(question[:n]); !strings.Contains(asked, "get") {
				text = strings.Repeat("-ERR unknown command\r\n", strings.Count(asked, "*"))
			}
			if _, err := conn.Write([]byte(text)); err != nil {
				return
			}
		}
	})
}

// A server in the place of Redis cannot end this process by the length that an answer announces.
func TestAnAnswerOfRedisIsBounded(t *testing.T) {
	const huge = "9223372036854775800\r\n"
	for name, answer := range map[string]string{
		"a string":             "$" + huge,
		"an error":             "!" + huge,
		"a verbatim string":    "=" + huge,
		"a list":               "*" + huge,
		"a map":                "%" + huge,
		"a set":                "~" + huge,
		"a push":               ">" + huge,
		"in an attribute":      "|1\r\n$-1\r\n+$" + huge,
		"behind its end":       "$1\r\naxy$" + huge,
		"of a negative size":   "$-2\r\n",
		"of no number":         "$x\r\n",
		"a line without end":   "+" + strings.Repeat("x", 2*replyBytes),
		"many of them":         strings.Repeat("*1\r\n", replyBytes),
		"nothing of a line":    "\r\n",
		"no type of an answer": "?\r\n",
	} {
		t.Run(name, func(t *testing.T) {
			s, err := NewRedis(answering(t, answer), Access{})
			require.NoError(t, err)
			t.Cleanup(func() { require.NoError(t, s.Close()) })
			ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
			defer cancel()
			_, err = s.Get(ctx, "k")
			require.Error(t, err)
			require.NoError(t, ctx.Err(), "the client waits for no more")
			ours, theirs := net.Pipe()
			defer ours.Close()
			go func() {
				_, _ = io.ReadFull(theirs, make([]byte, 1))
				_, _ = theirs.Write([]byte(answer))
				_ = theirs.Close()
			}()
			r := &replies{Conn: ours}
			_, err = r.Write([]byte("?"))
			require.NoError(t, err)
			_, err = io.Copy(io.Discard, r)
			require.ErrorIs(t, err, errReply)
		})
	}
}

// A service that refuses does answer: the error has its word alone.
func TestARefusalOfRedisIsNoSilence(t *testing.T) {
	const refusal = "READONLY You can't write against a read only replica."
	s, err := NewRedis(answering(t, "-"+refusal+"\r\n"), Access{})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	_, err = s.Get(t.Context(), "k")
	require.ErrorContains(t, err, refusal)
	require.ErrorContains(t, unanswered(s, "open", err), "cannot be used: "+refusal)
}

// Answers come in any pieces.
func TestAnswersOfRedisAreFollowedInPieces(t *testing.T) {
	const answers = "%2\r\n$6\r\nserver\r\n$5\r\nr\r\n$9\r\n:1\r\n*-1\r\n" +
		"$-1\r\n_\r\n#t\r\n,1.5\r\n(1\r\n>3\r\n+a\r\n-b\r\n=5\r\ntxt:c\r\n"
	for size := 1; size <= len(answers); size++ {
		var r replies
		for at := 0; at < len(answers); at += size {
			require.True(t, r.look([]byte(answers[at:min(at+size, len(answers))])), size)
		}
		require.Zero(t, r.skip+len(r.line))
		require.False(t, r.look([]byte("$65537\r\n")))
	}
}

// largeServer is a member of etcd with a value that no member takes.
type largeServer struct{ pb.UnimplementedKVServer }

func (*largeServer) Range(context.Context, *pb.RangeRequest) (*pb.RangeResponse, error) {
	return &pb.RangeResponse{Kvs: []*mvccpb.KeyValue{{Value: make([]byte, answerMax)}}}, nil
}

func TestAnAnswerOfEtcdIsBounded(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	server := grpc.NewServer()
	pb.RegisterKVServer(server, &largeServer{})
	go func() { _ = server.Serve(listener) }()
	t.Cleanup(server.Stop)
	s, err := NewEtcd([]string{listener.Addr().String()}, Access{}, time.Second)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	_, err = s.Get(t.Context(), "k")
	require.ErrorContains(t, err, "larger than max")
}
