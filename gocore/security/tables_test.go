package security

import (
	"errors"
	"strconv"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"
)

// All callers during a look at the kernel's tables share the next look, which begins after their calls.
func TestOneLookServesAllWhoAskDuringTheOneBefore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		looks, begun, end := 0, make(chan struct{}), make(chan struct{})
		shared := tables{look: func() ([]string, error) {
			looks++
			begun <- struct{}{}
			<-end
			return []string{strconv.Itoa(looks)}, nil
		}}
		answers := make(chan string, 100)
		ask := func() {
			texts, err := shared.read()
			if err == nil {
				answers <- texts[0]
			}
		}
		go ask()
		<-begun
		for range 99 {
			go ask()
		}
		synctest.Wait()
		end <- struct{}{}
		require.Equal(t, "1", <-answers)
		<-begun
		end <- struct{}{}
		synctest.Wait()
		require.Len(t, answers, 99)
		for range 99 {
			require.Equal(t, "2", <-answers)
		}
		require.Equal(t, 2, looks)
	})
}

func TestALookThatFailsFailsForAllAndTheNextOneIsAnother(t *testing.T) {
	failure := errors.New("too many open files")
	shared := tables{look: func() ([]string, error) { return nil, failure }}
	_, err := shared.read()
	require.ErrorIs(t, err, failure)
	shared.look = func() ([]string, error) { return []string{"text"}, nil }
	texts, err := shared.read()
	require.NoError(t, err)
	require.Equal(t, []string{"text"}, texts)
}

// Strangers that hang up at once make us ask the kernel for sockets that are gone. Once it has answered, that costs no
// walk through its tables.
func TestASocketThatIsGoneCostsNoLookAtTheTables(t *testing.T) {
	client, server := connection(t, "127.0.0.1:0", "127.0.0.1")
	near, far := addrPort(client.LocalAddr()), addrPort(client.RemoteAddr())
	if _, err := ownerByDiag(near, far); err != nil {
		t.Skipf("sock_diag does not answer here: %v", err)
	}
	_, err := ownerOf(near, far)
	require.NoError(t, err)
	looks := 0
	kernelTables.look = func() ([]string, error) { looks++; return readTables() }
	defer func() { kernelTables.look = readTables }()
	require.NoError(t, client.Close())
	require.NoError(t, server.Close())
	_, err = ownerOf(near, far)
	require.ErrorIs(t, err, errNoSocket)
	require.Zero(t, looks)
}
