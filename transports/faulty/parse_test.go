package faulty

import (
	"math"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/transport"
)

// plain is the rule that a statement starts from.
func plain(v verb, text string, change func(*rule)) *rule {
	r := &rule{verb: v, text: text, rail: -1, op: -1, class: -1, rate: 1, count: math.MaxUint64, code: errs.Lost,
		scope: errs.ScopeRail, side: errs.SidePath}
	if change != nil {
		change(r)
	}
	return r
}

func TestLanguage(t *testing.T) {
	for text, want := range map[string][]*rule{
		"":                     nil,
		" ; \n # only words\n": nil,
		"rail=1 blackhole after_bytes=8MiB": {plain(blackhole, "rail=1 blackhole after_bytes=8MiB",
			func(r *rule) { r.rail, r.afterBytes = 1, 8<<20 })},
		"blackhole after_bytes=8MiB rail=1": {plain(blackhole, "blackhole after_bytes=8MiB rail=1",
			func(r *rule) { r.rail, r.afterBytes = 1, 8<<20 })},
		"rail=0 delay=2ms": {plain(delay, "rail=0 delay=2ms",
			func(r *rule) { r.rail, r.delay = 0, 2*time.Millisecond })},
		"reject rail=* scope=link code=LOST": {plain(reject, "reject rail=* scope=link code=LOST", func(r *rule) {
			r.scope, r.scoped = errs.ScopeLink, true
		})},
		"drop_completion silent op=READ class=2 rate=0.5 count=3": {plain(dropCompletion,
			"drop_completion silent op=READ class=2 rate=0.5 count=3", func(r *rule) {
				r.silent, r.op, r.class, r.rate, r.count = true, int(transport.Read), 2, 0.5, 3
			})},
		"reject after_slices=7 side=remote collateral # comment": {plain(reject,
			"reject after_slices=7 side=remote collateral", func(r *rule) {
				r.afterSlices, r.side, r.collateral = 7, errs.SideRemote, true
			})},
		"peer=h:1 transport=tcp down; heal": {
			plain(down, "peer=h:1 transport=tcp down",
				func(r *rule) { r.peer, r.transport = "h:1", "tcp" }), plain(heal, "heal", nil)},
		"slow=10MiB/s; slow=10MiB": {plain(slow, "slow=10MiB/s", func(r *rule) { r.bytesPerSecond = 10 << 20 }),
			plain(slow, "slow=10MiB", func(r *rule) { r.bytesPerSecond = 10 << 20 })},
		"nth=5 drop silent; every=10 truncate; reorder=3": {plain(drop, "nth=5 drop silent",
			func(r *rule) { r.nth, r.silent = 5, true }),
			plain(truncate, "every=10 truncate", func(r *rule) { r.every = 10 }), plain(reorder, "reorder=3",
				func(r *rule) { r.behind = 3 })},
		"seed=7\nshort rate=0": {plain(seed, "seed=7", func(r *rule) { r.seed = 7 }),
			plain(short, "short rate=0", func(r *rule) { r.rate = 0 })},
	} {
		got, err := parse(text)
		require.NoError(t, err, text)
		for _, r := range got {
			r.hits = nil
		}
		require.Equal(t, want, got, text)
	}
}

// TestSeedsLine is the line that the failover seed's four faults make together.
func TestSeedsLine(t *testing.T) {
	got, err := parse("submit_fail_rate=0.3 status_corrupt_rate=0.1 fail_after_n_submits=5 fail_install seed=7")
	require.NoError(t, err)
	require.Len(t, got, 5)
	for i, want := range []rule{{verb: reject, rate: 0.3, scope: errs.ScopeLink},
		{verb: lose, rate: 0.1, scope: errs.ScopeLink},
		{verb: reject, rate: 1, afterSlices: 5, scope: errs.ScopeLink}, {verb: failInstall}, {verb: seed, seed: 7}} {
		require.Equal(t, want.verb, got[i].verb)
		switch want.verb {
		case reject, lose:
			require.Equal(t, want.rate, got[i].rate)
			require.Equal(t, want.afterSlices, got[i].afterSlices)
			require.Equal(t, want.scope, got[i].scope)
		case seed:
			require.Equal(t, want.seed, got[i].seed)
		}
	}
	got, err = parse("submit_fail_rate=1 scope=rail")
	require.NoError(t, err)
	require.Equal(t, errs.ScopeRail, got[0].scope, "what is written wins")
}

func TestMistakesAreNamedWithTheirPlace(t *testing.T) {
	for text, want := range map[string]string{
		"blackhol":                             `line 1, column 1: unknown word "blackhol"; did you mean blackhole?`,
		"rail=1 reject; rial=2 reject":         `line 1, column 16: unknown word "rial"; did you mean rail?`,
		"heal\n  rail=0 dely=2ms":              `line 2, column 10: unknown word "dely"; did you mean delay?`,
		"rail=x reject":                        `line 1, column 1: rail takes * or 0 to 65535, not "x"`,
		"reject rail=-1":                       `line 1, column 8: rail takes`,
		"delay=2":                              `delay takes a duration up to 1h such as 2ms, not "2"`,
		"delay=-2ms":                           `delay takes`,
		"submit_fail_rate=1.5":                 `submit_fail_rate takes 0 to 1, not "1.5"`,
		"lose rate=NaN":                        `rate takes 0 to 1`,
		"blackhole after_bytes=8MBs":           `after_bytes takes a size such as 4096, 64KiB or 8MB, not "8MBs"`,
		"blackhole after_bytes=99999999999GiB": `after_bytes takes`,
		"blackhole after_bytes=-1":             `after_bytes takes`,
		"reject code=LOSST":                    `code takes the name of a code such as LOST`,
		"reject code=CODE_5":                   `code takes the name`,
		"reject scope=Rail":                    `scope takes one of slice, rail, link, transport, not "Rail"`,
		"reject op=read":                       `op takes one of *, READ, WRITE, not "read"`,
		"reject reject":                        `line 1, column 8: reject is there twice`,
		"blackhole=1":                          `blackhole takes no value`,
		"rail= reject":                         `rail needs a value`,
		"delay":                                `delay needs a value`,
		"nth=0 drop":                           `nth takes a number of at least 1, not "0"`,
		"slow=fast":                            `slow takes bytes a second such as 64KiB or 10MB/s, not "fast"`,
		"slow=0":                               `slow takes bytes a second`,
		"reorder":                              `reorder needs a value`,
		"corrupt silent":                       `line 1, column 1: corrupt cannot be silent`,
		"rail=1 down after_bytes=1GiB":         `line 1, column 13: down takes no after_bytes; it strikes whole rails`,
		"op=READ reset":                        `line 1, column 1: reset takes no op`,
		"down code=LOST":                       `line 1, column 6: down takes no code`,
		"rail=1 after_bytes=5":                 `line 1, column 1: nothing happens in "rail=1 after_bytes=5"; add a fault, such as reject`,
	} {
		_, err := parse(text)
		require.ErrorContains(t, err, want, text)
		require.Equal(t, errs.InvalidArgument, errs.CodeOf(err), text)
	}
}

// TestRailsGoDownAtOnceOrNotAtAll: down and reset have no word that puts them off or chooses slices.
func TestRailsGoDownAtOnceOrNotAtAll(t *testing.T) {
	for _, fault := range []string{"down", "reset"} {
		for _, word := range []string{"op=READ", "class=0", "nth=3", "every=2", "rate=0", "after_bytes=1",
			"after_slices=1", "count=1", "code=LOST", "scope=link", "side=local", "collateral"} {
			_, err := parse("rail=1 " + word + " " + fault)
			require.ErrorContains(t, err, fault+" takes no "+strings.Split(word, "=")[0])
		}
		_, err := parse("transport=tcp peer=h:1 rail=1 unused_ok ambient " + fault)
		require.NoError(t, err)
	}
}

func TestAMistakeChangesNothing(t *testing.T) {
	p, err := New("rail=1 reject")
	require.NoError(t, err)
	require.Error(t, p.Apply("rail=2 reject; nonsense"))
	require.Equal(t, "rail=1 reject", p.String())
}

func TestHealEndsWhatItsSelectorsName(t *testing.T) {
	for text, want := range map[string]string{
		"heal":                "",
		"rail=1 heal":         "rail=0 lose; reject; transport=tcp down",
		"rail=0 heal":         "rail=1 reject; reject; transport=tcp down",
		"transport=tcp heal":  "rail=1 reject; rail=0 lose; reject",
		"transport=rdma heal": "rail=1 reject; rail=0 lose; reject; transport=tcp down",
		"rail=2 heal":         "rail=1 reject; rail=0 lose; reject; transport=tcp down",
		"nth=3 heal":          "rail=1 reject; rail=0 lose; reject; transport=tcp down",
	} {
		p, err := New("rail=1 reject; rail=0 lose; reject; transport=tcp down; " + text)
		require.NoError(t, err)
		require.Equal(t, want, p.String(), text)
	}
}

func TestHealEndsTheFaultsOfChosenSlices(t *testing.T) {
	const text = "drop; nth=3 drop; nth=4 drop; every=3 drop; rail=1 every=3 drop"
	for heal, want := range map[string]string{
		"nth=3 heal":          "drop; nth=4 drop; every=3 drop; rail=1 every=3 drop",
		"every=3 heal":        "drop; nth=3 drop; nth=4 drop",
		"rail=1 every=3 heal": "drop; nth=3 drop; nth=4 drop; every=3 drop",
		"heal":                "",
	} {
		p, err := New(text + ";" + heal)
		require.NoError(t, err)
		require.Equal(t, want, p.String(), heal)
	}
}

// FuzzParse: no crash, and a text that was accepted means the same when it is written again.
func FuzzParse(f *testing.F) {
	f.Add("submit_fail_rate=0.3 status_corrupt_rate=0.1 fail_after_n_submits=5 fail_install seed=7")
	f.Add("rail=1 blackhole after_bytes=8MiB; rail=0 delay=2ms\nreject rail=* scope=link code=LOST # why\nheal")
	f.Fuzz(func(t *testing.T, text string) {
		rules, err := parse(text)
		if err != nil {
			require.NotEmpty(t, err.Error())
			return
		}
		for _, r := range rules {
			again, err := parse(r.text)
			require.NoError(t, err, r.text)
			require.Contains(t, again, r)
		}
	})
}
