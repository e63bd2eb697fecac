package security

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tent-engine/tent/gocore/audit"
	"github.com/tent-engine/tent/gocore/control"
	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/security"
	"github.com/tent-engine/tent/gocore/security/securitytest"
)

// The audit file has each admission, refusal, loss of access and reload with its cause. A stranger that knocks without
// a pause fills neither the file nor anything else: the lines about it have numbers.
func TestSecurityEventsAreAudited(t *testing.T) {
	path := filepath.Join(t.TempDir(), "audit.jsonl")
	ca, foreign := securitytest.NewAuthority(t, nil), securitytest.NewAuthority(t, nil)
	f := securitytest.NewFiles(t)
	f.Write(t, ca.Issue(t, nil, "owner"), ca)
	settings := f.Settings("dns:friend")
	settings["security/audit"], settings["security/reload_interval"], settings["name"] = path, 0, "owner"
	owner, err := open(settings)
	require.NoError(t, err)
	friend := newMember(t, ca.Issue(t, nil, "friend"), ca, nil, "*")
	_, err = friend.OpenSegment(context.Background(), owner.Address())
	require.NoError(t, err)
	const knocks = 100
	began := time.Now()
	stranger := newMember(t, foreign.Issue(t, nil, "friend"), ca, nil, "*")
	for range knocks {
		_, err = stranger.OpenSegment(context.Background(), owner.Address())
		require.Equal(t, errs.PeerNotAdmitted, errs.CodeOf(err))
	}
	seconds := int(time.Since(began)/time.Second) + 2
	n, err := owner.Disconnect(context.Background(), "dns:friend")
	require.NoError(t, err)
	require.Equal(t, 1, n)
	require.NoError(t, os.WriteFile(f.Key, []byte("no key"), 0o600))
	_, err = owner.ReloadSecurity(context.Background(), nil)
	require.Error(t, err)
	require.Empty(t, owner.Close(patience, true))
	require.NoError(t, owner.Forget())

	found := map[string][]audit.Entry{}
	for _, e := range audited(t, path) {
		require.Equal(t, "owner", e.Engine)
		require.Zero(t, e.Lost)
		found[e.Event] = append(found[e.Event], e)
	}
	require.Len(t, found["engine_opened"], 1)
	require.Contains(t, found["engine_opened"][0].Note, "mode mtls at "+owner.Address())
	require.Equal(t, "dns:friend", found["peer_admitted"][0].Note)
	refused := found["peer_refused"]
	require.NotEmpty(t, refused)
	require.LessOrEqual(t, len(refused), seconds, "one a second for each peer and reason")
	require.Contains(t, refused[0].Error, "no authority in security/ca has issued its certificate")
	require.Equal(t, "identity", refused[0].Note)
	require.Len(t, found["peer_disconnected"], 1)
	require.Equal(t, "dns:friend", found["peer_disconnected"][0].Note)
	require.Contains(t, found["security_reloaded"][0].Error, "security/")
	require.Len(t, found["engine_closed"], 1)
}

// Files by relative names stay those of the working directory in which the engine was opened. Certificates are read
// again there when the program has changed it, and an audit file that was moved away is made again there.
func TestFilesStayWhereTheyWereWhenTheEngineWasOpened(t *testing.T) {
	ca := securitytest.NewAuthority(t, nil)
	f := securitytest.NewFiles(t)
	f.Write(t, ca.Issue(t, nil, "owner"), ca)
	settings := f.Settings("*")
	for _, key := range []string{"security/cert", "security/key", "security/ca"} {
		settings[key] = filepath.Base(settings[key].(string))
	}
	settings["security/audit"], settings["security/reload_interval"] = "audit.jsonl", 0
	t.Chdir(f.Folder)
	owner, err := open(settings)
	require.NoError(t, err)
	t.Chdir(t.TempDir())
	path := filepath.Join(f.Folder, "audit.jsonl")
	require.NoError(t, os.Rename(path, path+".1"))
	f.Write(t, ca.Issue(t, nil, "owner"), ca)
	changed, err := owner.ReloadSecurity(context.Background(), nil)
	require.NoError(t, err)
	require.True(t, changed)
	require.Empty(t, owner.Close(patience, true))
	require.NoError(t, owner.Forget())
	lines := audited(t, path)
	require.Equal(t, "engine_closed", lines[len(lines)-1].Event)
	require.NoFileExists(t, "audit.jsonl")
}

// A member that gives the address of another one, which is open here, has neither that one's lines nor its end. Lines
// have the ID that is proved, and the host.
func TestLinesNameTheEngineThatProvedItself(t *testing.T) {
	path, key := filepath.Join(t.TempDir(), "audit.jsonl"), filepath.Join(t.TempDir(), "cluster.key")
	require.NoError(t, os.WriteFile(key, bytes.Repeat([]byte{7}, 32), 0o600))
	settings := map[string]any{"security/cluster_key": key, "transports/shm/enable": false}
	honest := victim(t, settings)
	settings["security/audit"] = path
	owner, err := open(settings)
	require.NoError(t, err)
	_, err = owner.OpenSegment(t.Context(), honest.Address())
	require.NoError(t, err)
	_, err = honest.OpenSegment(t.Context(), owner.Address())
	require.NoError(t, err)
	credentials, err := security.Open(security.Settings{ClusterKey: key})
	require.NoError(t, err)
	liar := control.NewClient(control.Options{Self: honest.Self, Credentials: credentials})
	defer liar.Close()
	require.NoError(t, liar.Probe(t.Context(), owner.Self()))
	require.Len(t, owner.Peers(), 2)
	n, err := owner.Disconnect(t.Context(), honest.Address())
	require.NoError(t, err)
	require.Equal(t, 1, n)
	require.Len(t, owner.Peers(), 1)
	require.Equal(t, credentials.ID(), owner.Peers()[0].Peer.ID)
	require.Empty(t, owner.Close(time.Second, true))
	require.NoError(t, owner.Forget())
	lies := credentials.ID().String()
	address := map[string]string{honest.Self().ID.String(): honest.Address(), lies: lies}
	lines := map[string]int{}
	for _, e := range audited(t, path) {
		if e.Event == "peer_admitted" || e.Event == "peer_disconnected" {
			lines[e.Event]++
			require.Equal(t, address[e.ID], e.Peer)
			require.Equal(t, "127.0.0.1", e.Host)
		}
	}
	require.Equal(t, map[string]int{"peer_admitted": 2, "peer_disconnected": 1}, lines)
}

func audited(t *testing.T, path string) (list []audit.Entry) {
	t.Helper()
	file, err := os.Open(path)
	require.NoError(t, err)
	defer file.Close()
	about, err := file.Stat()
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o600), about.Mode().Perm())
	for lines := bufio.NewScanner(file); lines.Scan(); {
		var e audit.Entry
		require.NoError(t, json.Unmarshal(lines.Bytes(), &e))
		list = append(list, e)
	}
	return list
}
