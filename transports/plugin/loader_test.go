package plugin

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tent-engine/tent/gocore/config"
	"github.com/tent-engine/tent/gocore/errs"
)

// The conformance suite runs over the example as C.
func TestTheExampleIsCPlusPlusToo(t *testing.T) {
	f := factory(t, built(t, asCPlusPlus, "example/inside.c"))
	require.NoError(t, f.Check())
	require.Equal(t, "inside", f.Name())
}

func TestFoldersAreReadInTheOrderOfNamesAndFilesOnce(t *testing.T) {
	compiled := built(t, asC, "testdata/abuse.c")
	folder := t.TempDir()
	for _, name := range []string{"libb.so", "liba.so", "libc.so"} {
		placed(t, compiled, filepath.Join(folder, name))
	}
	require.NoError(t, os.WriteFile(filepath.Join(folder, "readme.txt"), []byte("no plug-in"), 0o600))
	var names []string
	for _, f := range Load([]string{filepath.Join(folder, "libc.so"), folder, folder + "/./liba.so"}, nil) {
		require.NoError(t, f.Check())
		names = append(names, f.Name())
	}
	require.Equal(t, []string{"c", "a", "b"}, names)
}

func TestPlugInsOfOneNameAreToldApart(t *testing.T) {
	compiled := built(t, asC, "example/inside.c")
	list := Load([]string{compiled, placed(t, compiled, filepath.Join(t.TempDir(), "libinside.so"))}, nil)
	require.Len(t, list, 2)
	require.NoError(t, list[0].Check())
	require.ErrorContains(t, list[1].Check(), `another transport is called "inside"`)
	require.Equal(t, "inside-2", list[1].Name())
}

func TestFilesThatOthersCouldHaveWrittenAreNotOpened(t *testing.T) {
	compiled := built(t, asC, "example/inside.c")
	fresh := func() string { return placed(t, compiled, filepath.Join(t.TempDir(), "libfresh.so")) }
	for _, row := range []struct {
		name, reason string
		spoil        func(path string) string
	}{
		{"others may write it", "others may write", func(p string) string { return chmod(t, p, p, 0o777) }},
		{"its group may write it", "others may write", func(p string) string { return chmod(t, p, p, 0o775) }},
		{"others may replace it", "chmod go-w", func(p string) string { return chmod(t, p, filepath.Dir(p), 0o777) }},
		{"a link to such a file", "others may write", func(p string) string {
			chmod(t, p, p, 0o777)
			link := filepath.Join(t.TempDir(), "libgood.so")
			require.NoError(t, os.Symlink(p, link))
			return link
		}},
		{"it is cut short", "it is damaged", func(p string) string {
			require.NoError(t, os.Truncate(p, 9000))
			return p
		}},
		{"it is a text", "it is damaged", func(p string) string {
			require.NoError(t, os.WriteFile(p, []byte("#!/bin/sh\n"), 0o600))
			return p
		}},
		{"it is empty", "it is damaged", func(p string) string {
			require.NoError(t, os.Truncate(p, 0))
			return p
		}},
		{"it is not there", "no such file", func(p string) string { return p + "x" }},
		{"a relative path", "not absolute", func(string) string { return "libfresh.so" }},
		{"another library", "it has neither a function", func(string) string { return libm(t) }},
		{"another user's", "belongs to user 12345", func(p string) string {
			if os.Geteuid() != 0 {
				t.Skip("only root can give a file away")
			}
			require.NoError(t, os.Chown(p, 12345, -1))
			return p
		}},
	} {
		t.Run(row.name, func(t *testing.T) {
			path := row.spoil(fresh())
			err := factory(t, path).Check()
			require.ErrorContains(t, err, row.reason)
			require.ErrorContains(t, err, filepath.Base(path))
		})
	}
}

// A link that leads elsewhere behind the look at its file opens that file.
func TestWhatWasLookedAtIsOpened(t *testing.T) {
	good, other := built(t, asC, "example/inside.c"), built(t, asC, "testdata/abuse.c")
	link := filepath.Join(t.TempDir(), "liblink.so")
	require.NoError(t, os.Symlink(good, link))
	list := files([]string{link})
	require.Len(t, list, 1)
	require.NoError(t, os.Remove(link))
	require.NoError(t, os.Symlink(other, link))
	l := opened(list[0])
	require.NoError(t, l.err)
	require.Equal(t, "inside", l.name)
}

func chmod(t *testing.T, path, what string, mode os.FileMode) string {
	t.Helper()
	require.NoError(t, os.Chmod(what, mode))
	return path
}

// libm is a library of the system, which root owns.
func libm(t *testing.T) string {
	t.Helper()
	for _, pattern := range []string{"/lib/*-linux-gnu/libm.so.6", "/lib64/libm.so.6"} {
		if found, _ := filepath.Glob(pattern); len(found) > 0 {
			return found[0]
		}
	}
	t.Skip("no libm.so.6 where systems have it")
	return ""
}

func TestTooManyPlugInsAreNamed(t *testing.T) {
	folder := t.TempDir()
	for i := range filesMax + 5 {
		require.NoError(t, os.WriteFile(filepath.Join(folder, strings.Repeat("x", i+1)+".so"), nil, 0o600))
	}
	list := Load([]string{folder}, nil)
	require.Len(t, list, filesMax+1)
	require.ErrorContains(t, list[filesMax].Check(), "16 plug-ins are the limit")
}

func TestSettingsOfAPlugInAreThoseOfTheTree(t *testing.T) {
	f := factory(t, built(t, asC, "example/inside.c"))
	lines := []config.Transport{{Name: f.Name(), Settings: f.Settings()}}
	c, err := config.Load(config.Options{Transports: lines}, map[string]any{"transports/inside/trusting": true,
		"transports": map[string]any{"inside": map[string]any{"rail_error_threshold": 7}}})
	require.NoError(t, err)
	require.Equal(t, []string{"true"}, config.DeclaredValues(f.library.declared, c.SettingsOf("inside")))
	require.Equal(t, []string{"false"}, config.DeclaredValues(f.library.declared, nil))
	require.Equal(t, 7, c.RailOf("inside").ErrorThreshold)
	for key, reason := range map[string]string{"trusting": "true or false", "trust": `"transports/inside/trusting"`} {
		_, err = config.Load(config.Options{Transports: lines}, map[string]any{"transports/inside/" + key: "maybe"})
		require.Equal(t, errs.InvalidArgument, errs.CodeOf(err))
		require.ErrorContains(t, err, reason)
	}
}

// FuzzLoad gives files that are damaged in every way to the loader. Damage that the tables do not show
// would be the fault of a program: such files are looked at and not run.
func FuzzLoad(f *testing.F) {
	compiled := built(f, asC, "example/inside.c")
	whole, err := os.ReadFile(compiled)
	require.NoError(f, err)
	f.Add(whole[:64], uint16(64), "inside")
	f.Add([]byte("\x7fELF"), uint16(0), "../x")
	f.Add([]byte{}, uint16(9000), "*?[")
	path := filepath.Join(f.TempDir(), "libfuzzed.so")
	f.Fuzz(func(t *testing.T, head []byte, length uint16, name string) {
		text := append(append([]byte{}, head...), whole[min(len(head), len(whole)):]...)
		require.NoError(t, os.WriteFile(path, text[:min(int(length), len(text))], 0o600))
		for _, found := range files([]string{path}) {
			require.True(t, found.err != nil || int(length) > 64, "a header alone is no library")
		}
		require.Regexp(t, wellNamed, fallback(name))
		_, _ = config.Declare([]config.Declared{{Key: name, Kind: "text", Takes: string(head), Default: name}})
		_, _ = config.Declare([]config.Declared{{Key: "key", Kind: "int", Takes: name, Default: string(head)}})
	})
}
