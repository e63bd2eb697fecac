package segment

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/mem"
)

func sealed(t testing.TB, regions ...Region) *Description {
	for i := range regions {
		regions[i].ID = mem.RegionID(i + 1)
	}
	d := &Description{Regions: regions}
	require.NoError(t, d.Seal())
	return d
}

func TestRegionsAreFoundByName(t *testing.T) {
	d := sealed(t, Region{Name: "v", Addr: 200, Size: 10}, Region{Name: "k", Addr: 100, Size: 10},
		Region{Addr: 300, Size: 1})
	require.EqualValues(t, 100, d.Find("k").Addr)
	require.EqualValues(t, 200, d.Find("v").Addr)
	require.Nil(t, d.Find("x"))
	require.Nil(t, d.Find(""), "an unnamed region cannot be asked for by the empty name")
}

func TestSmallestRegionThatContainsTheRangeWins(t *testing.T) {
	d := sealed(t,
		Region{Name: "pool", Addr: 0x1000, Size: 0x1000},
		Region{Name: "page", Addr: 0x1100, Size: 0x100},
		Region{Name: "head", Addr: 0x1000, Size: 0x80},
		Region{Name: "across", Addr: 0x1180, Size: 0x110})
	for _, c := range []struct {
		addr, length uint64
		want         string
	}{{0x1000, 0x80, "head"}, {0x1000, 0x81, "pool"}, {0x1100, 1, "page"}, {0x11ff, 2, "across"}, {0x1190, 0x70,
		"page"},
		{0x1100, 0x180, "pool"}, {0x1fff, 1, "pool"}, {0x1fff, 2, ""}, {0xfff, 1, ""}, {0x1000, math.MaxUint64, ""},
		{math.MaxUint64, 1, ""}} {
		got := d.Containing(c.addr, c.length)
		if c.want == "" {
			require.Nil(t, got, "%#x+%#x", c.addr, c.length)
			continue
		}
		require.Equal(t, c.want, got.Name, "%#x+%#x", c.addr, c.length)
	}
}

func TestContainingAgreesWithAFullSearch(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 1))
	for range 300 {
		regions := make([]Region, random.IntN(40))
		for i := range regions {
			regions[i] = Region{Addr: random.Uint64N(200), Size: 1 + random.Uint64N(1+random.Uint64N(100))}
		}
		d := sealed(t, regions...)
		for range 200 {
			addr, length := random.Uint64N(220), random.Uint64N(30)
			want := uint64(math.MaxUint64)
			for i := range d.Regions {
				if r := &d.Regions[i]; r.Addr <= addr && addr+length <= r.end() {
					want = min(want, r.Size)
				}
			}
			got := d.Containing(addr, length)
			if want == math.MaxUint64 {
				require.Nil(t, got, "seed %d", seed)
			} else {
				require.NotNil(t, got, "seed %d", seed)
				require.Equal(t, want, got.Size, "seed %d", seed)
				require.True(t, got.Addr <= addr && addr+length <= got.end(), "seed %d", seed)
			}
		}
	}
}

func TestSealRefusesWhatCannotBe(t *testing.T) {
	good := Region{ID: 1, Name: "a", Addr: 1, Size: 1}
	for want, change := range map[string]func(*Region){
		"no id":              func(r *Region) { r.ID = 0 },
		"is empty":           func(r *Region) { r.Size = 0 },
		"address space":      func(r *Region) { r.Addr, r.Size = math.MaxUint64-5, 7 },
		"memory kind":        func(r *Region) { r.Kind = mem.Kind(mem.KindCount) },
		"unknown permission": func(r *Region) { r.Permission = 3 },
		"cannot be shown":    func(r *Region) { r.Location = "cpu:0\x1b[2J" },
	} {
		bad := good
		change(&bad)
		err := (&Description{Regions: []Region{bad}}).Seal()
		require.ErrorContains(t, err, want)
		require.Equal(t, errs.InvalidArgument, errs.CodeOf(err))
	}
	require.ErrorContains(t, (&Description{Regions: []Region{good, good}}).Seal(), `two regions are named "a"`)
}

// BenchmarkContaining shows that one large region around all others costs nothing where outer skips.
func BenchmarkContaining(b *testing.B) {
	regions := []Region{{Addr: 0, Size: 1 << 40}}
	for i := range uint64(1000) {
		regions = append(regions, Region{Name: fmt.Sprint(i), Addr: i << 20, Size: 1 << 19})
	}
	d := sealed(b, regions...)
	b.ReportAllocs()
	for i := uint64(0); b.Loop(); i++ {
		if d.Containing(i%1000<<20+uint64(1<<19)*(i&1), 64) == nil {
			b.Fatal("not found")
		}
	}
}
