package security

import (
	"bufio"
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tent-engine/tent/gocore/audit"
	"github.com/tent-engine/tent/gocore/errs"
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
