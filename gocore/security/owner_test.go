package security

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// connection is an established connection over an address, both ends of this process.
func connection(t *testing.T, listen, dial string) (client, server net.Conn) {
	l, err := net.Listen("tcp", listen)
	require.NoError(t, err)
	t.Cleanup(func() { l.Close() })
	_, port, err := net.SplitHostPort(l.Addr().String())
	require.NoError(t, err)
	client, err = net.Dial("tcp", net.JoinHostPort(dial, port))
	require.NoError(t, err)
	t.Cleanup(func() { client.Close() })
	server, err = l.Accept()
	require.NoError(t, err)
	t.Cleanup(func() { server.Close() })
	return client, server
}

// owners are the two ways to ask.
var owners = map[string]func(local, remote netip.AddrPort) (uint32, error){
	"sock_diag": ownerByDiag, "proc": ownerByProc, "both": ownerOf}

func TestTheKernelKnowsTheOwnerOfEachEnd(t *testing.T) {
	for _, c := range []struct{ listen, dial string }{
		{"127.0.0.1:0", "127.0.0.1"}, {"127.0.0.1:0", "localhost"}, {"0.0.0.0:0", "127.0.0.1"},
		{"[::]:0", "127.0.0.1"}, {"[::]:0", "::1"}, {"[::1]:0", "::1"},
	} {
		client, server := connection(t, c.listen, c.dial)
		for name, owner := range owners {
			for _, end := range []net.Conn{client, server} {
				uid, err := owner(addrPort(end.LocalAddr()), addrPort(end.RemoteAddr()))
				require.NoError(t, err, "%s, %v", name, c)
				require.EqualValues(t, os.Getuid(), uid, "%s, %v", name, c)
			}
		}
	}
}

// TestALimitIsNoStranger: where the process has no descriptor left to ask the kernel with, the reason has that cure.
func TestALimitIsNoStranger(t *testing.T) {
	_, server := connection(t, "127.0.0.1:0", "127.0.0.1")
	var before unix.Rlimit
	require.NoError(t, unix.Getrlimit(unix.RLIMIT_NOFILE, &before))
	require.NoError(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: 0, Max: before.Max}))
	_, err := (&users{any: true}).admit(server)
	require.NoError(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &before))
	require.ErrorContains(t, err, "cannot be found out")
	require.ErrorContains(t, err, "raise ulimit -n")
	require.NotContains(t, err.Error(), "cluster_key")
}

// A listener, an end that has closed, one that nobody has accepted yet and a connection that never was have no owner:
// the kernel answers with root for some of them.
func TestOnlyConnectionsInUseHaveAnOwner(t *testing.T) {
	client, server := connection(t, "127.0.0.1:0", "127.0.0.1")
	near, far := addrPort(client.LocalAddr()), addrPort(client.RemoteAddr())
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer l.Close()
	waiting, err := net.Dial("tcp", l.Addr().String())
	require.NoError(t, err)
	defer waiting.Close()
	nobody := netip.AddrPortFrom(near.Addr(), 1)
	refused := func(why string, local, remote netip.AddrPort) {
		for name, owner := range owners {
			_, err := owner(local, remote)
			require.True(t, errors.Is(err, errNoSocket) || errors.Is(err, unix.ENOENT), "%s, %s: %v", name, why, err)
		}
	}
	refused("a listener", addrPort(l.Addr()), nobody)
	refused("another port", near, nobody)
	refused("an address of another host", near, netip.MustParseAddrPort("192.0.2.1:80"))
	refused("not accepted yet", addrPort(waiting.RemoteAddr()), addrPort(waiting.LocalAddr()))
	require.NoError(t, client.Close())
	refused("closed at its own end", near, far)
	require.NoError(t, server.Close())
	refused("closed at both ends", far, near)
}

func TestAnswersOfTheKernelAreChecked(t *testing.T) {
	local, remote := netip.MustParseAddrPort("127.0.0.1:1"), netip.MustParseAddrPort("127.0.0.1:2")
	for n := range answerSize {
		_, err := readDiag(make([]byte, n), local, remote)
		require.Error(t, err, "%d bytes", n)
	}
	_, err := findOwner("sl\n 0: 0100007F:0001 0100007F:0002 01 0:0 0:0 0 nobody 0 7\n", local, remote)
	require.ErrorContains(t, err, "nobody")
	for _, line := range []string{"", "x", " 0: 0100007F:0001 0100007F:0002 01",
		" 0: 0100007F 0100007F:0002 01 0 0 0 0 0 7",
		" 0: 0100007G:0001 0100007F:0002 01 0 0 0 0 0 7", " 0: 0100007F:0001 0100007F:0002 06 0 0 0 0 0 7"} {
		_, err := findOwner(line, local, remote)
		require.ErrorIs(t, err, errNoSocket, line)
	}
}

// The kernel falls back to other sockets than the one that was asked for: each part of its answer is compared.
func TestTheOwnerOfAnotherSocketIsNotBelieved(t *testing.T) {
	local, remote := netip.MustParseAddrPort("127.0.0.1:1"), netip.MustParseAddrPort("127.0.0.1:2")
	answer := func(local, remote netip.AddrPort, state byte, inode uint32) []byte {
		b := make([]byte, answerSize)
		b[answerFamily], b[answerState] = unix.AF_INET, state
		copy(b[answerEnds:], appendEnds(nil, local, remote))
		binary.NativeEndian.PutUint32(b[answerOwner:], 1000)
		binary.NativeEndian.PutUint32(b[answerInode:], inode)
		return b
	}
	owner, err := readDiag(answer(local, remote, established, 7), local, remote)
	require.NoError(t, err)
	require.EqualValues(t, 1000, owner)
	other := netip.MustParseAddrPort("127.0.0.1:3")
	for name, b := range map[string][]byte{
		"another local end":  answer(other, remote, established, 7),
		"another remote end": answer(local, other, established, 7),
		"not established":    answer(local, remote, 10, 7),
		"without an inode":   answer(local, remote, established, 0),
	} {
		_, err := readDiag(b, local, remote)
		require.ErrorIs(t, err, errNoSocket, name)
	}
}

func TestUsersAreNamedByNameOrNumber(t *testing.T) {
	u, err := parseUsers([]string{"root", "65534"}, 1000)
	require.NoError(t, err)
	require.Equal(t, users{uids: []uint32{1000, 0, 65534}}, u)
	u, err = parseUsers([]string{"any"}, 1000)
	require.NoError(t, err)
	require.True(t, u.any)
	_, err = parseUsers([]string{"no-such-user"}, 1000)
	require.ErrorContains(t, err, `security/local_users: no user of this host is named "no-such-user"`)
}

func BenchmarkOwner(b *testing.B) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(b, err)
	defer l.Close()
	client, err := net.Dial("tcp", l.Addr().String())
	require.NoError(b, err)
	defer client.Close()
	for b.Loop() {
		if _, err := ownerByDiag(addrPort(client.LocalAddr()), addrPort(client.RemoteAddr())); err != nil {
			b.Fatal(err)
		}
	}
}

// engineEnv is set in the engine of TestAUserThatOurNamespaceDoesNotMapIsRefused, to its security/local_users.
const engineEnv = "TENT_TEST_LOCAL_USERS"

// The engine runs as nobody in a user namespace that maps this user alone, as in a rootless container. The kernel says
// nobody of every other user of the host, too; the test, which dials it, is root there.
func TestAUserThatOurNamespaceDoesNotMapIsRefused(t *testing.T) {
	if list, is := os.LookupEnv(engineEnv); is {
		admitOne(t, strings.Fields(list))
		return
	}
	if os.Getuid() != 0 {
		t.Skip("only root can map another user")
	}
	const nobody, outside = 65534, 2000
	for list, verdict := range map[string]string{
		"":      `"", its user has no number in the user namespace`,
		"65534": `"", its user has no number in the user namespace`,
		"any":   `"", <nil>`,
	} {
		engine := exec.CommandContext(t.Context(), "/proc/self/exe", "-test.v", "-test.run=^"+t.Name()+"$")
		engine.Env = append(os.Environ(), engineEnv+"="+list)
		mapping := []syscall.SysProcIDMap{{ContainerID: nobody, HostID: outside, Size: 1}}
		engine.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWUSER, UidMappings: mapping,
			GidMappings: mapping, Credential: &syscall.Credential{Uid: nobody, Gid: nobody, NoSetGroups: true}}
		engine.Dir = "/"
		out, err := engine.StdoutPipe()
		require.NoError(t, err)
		if err := engine.Start(); errors.Is(err, unix.EPERM) || errors.Is(err, unix.ENOSPC) {
			t.Skip("no user namespace here: ", err)
		}
		said := ""
		for lines := bufio.NewScanner(out); lines.Scan(); {
			if address, is := strings.CutPrefix(lines.Text(), "listens: "); is {
				conn, err := net.Dial("tcp", address)
				require.NoError(t, err)
				defer conn.Close()
			}
			if text, is := strings.CutPrefix(lines.Text(), "verdict: "); is {
				said = text
			}
		}
		require.NoError(t, engine.Wait())
		require.Contains(t, said, verdict, list)
	}
}

// admitOne prints an address, and the verdict about the first one that dials it.
func admitOne(t *testing.T, localUsers []string) {
	c, err := Open(Settings{LocalUsers: localUsers})
	require.NoError(t, err)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer l.Close()
	fmt.Println("listens:", l.Addr())
	conn, err := l.Accept()
	require.NoError(t, err)
	defer conn.Close()
	identity, err := c.users.admit(conn)
	fmt.Printf("verdict: %q, %v\n", identity, err)
}
