package segment

import (
	"encoding/hex"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

var rewrite = flag.Bool("rewrite", false, "write the recorded descriptions anew: only before a version is released")

// Descriptions and blobs of released versions stay readable: a blob may lie in a file for a long time.
func TestRecordedDescriptionsAreStillUnderstood(t *testing.T) {
	plain, leases := example(t, 3), leased(t)
	for name, d := range map[string]*Description{"description": plain, "blob": plain, "leases": leases} {
		t.Run(name, func(t *testing.T) {
			sent := Encode(d, name != "blob")
			path := filepath.Join("testdata", "format2", name+".hex")
			if *rewrite {
				require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o755))
				require.NoError(t, os.WriteFile(path, []byte(hex.EncodeToString(sent)+"\n"), 0o644))
			}
			text, err := os.ReadFile(path)
			require.NoError(t, err)
			old, err := hex.DecodeString(strings.TrimSpace(string(text)))
			require.NoError(t, err)
			require.Equal(t, old, sent, "another encoding is another format")
			got, err := Decode(old)
			require.NoError(t, err)
			require.Equal(t, d.Peer(), got.Peer())
			require.Len(t, got.Regions, len(d.Regions))
			for i := range d.Regions {
				require.Equal(t, d.Regions[i].Name, got.Regions[i].Name)
				require.Equal(t, d.Regions[i].Addr, got.Regions[i].Addr)
				require.Equal(t, d.Regions[i].Lease, got.Regions[i].Lease)
				require.Equal(t, d.Regions[i].Start, got.Regions[i].Start)
			}
		})
	}
}
