package share

import (
	"context"
	"encoding/binary"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tent-engine/tent/gocore/clock"
	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/qos"
)

func TestEachHearsWhatTheOthersHaveInFlight(t *testing.T) {
	r := newRig(t)
	a, b, c := r.device(r.open(), "eth0"), r.device(r.open(), "eth0"), r.device(r.open(), "eth0")
	elsewhere := r.device(r.open(), "eth1")
	now := clock.Now()
	a.Carries(1000, now)
	b.Carries(200, now)
	elsewhere.Carries(7, now)
	require.EqualValues(t, 200, a.Others(now))
	require.EqualValues(t, 1000, b.Others(now))
	require.EqualValues(t, 1200, c.Others(now))
	require.Zero(t, elsewhere.Others(now))
	now += ms
	a.Carries(0, now)
	require.EqualValues(t, 200, c.Others(now))
}

func TestTheBeginningAndTheEndArePublishedAtOnceTheRestOnceAGrain(t *testing.T) {
	r := newRig(t)
	a, b := r.device(r.open(), "eth0"), r.device(r.open(), "eth0")
	now := clock.Now()
	hear := func() uint64 { b.looked = 0; return b.Others(now) }
	a.Carries(10, now)
	require.EqualValues(t, 10, hear())
	a.Carries(20, now+1)
	require.EqualValues(t, 10, hear(), "not worth a store")
	a.Carries(0, now+2)
	require.Zero(t, hear())
	a.Carries(30, now+3)
	require.EqualValues(t, 30, hear())
	now += grain(interval) + 3
	a.Carries(40, now)
	require.EqualValues(t, 40, hear())
}

func TestBytesThatNobodyConfirmsDoNotCountAnyMore(t *testing.T) {
	r := newRig(t)
	a, b := r.device(r.open(), "eth0"), r.device(r.open(), "eth0")
	now := clock.Now()
	a.Carries(1000, now)
	require.EqualValues(t, 1000, b.Others(now+200*ms-1))
	require.Zero(t, b.Others(now+200*ms+ms))
	a.Carries(1000, now+200*ms+2*ms)
	require.EqualValues(t, 1000, b.Others(now+200*ms+2*ms), "it is back")
}

func TestAClaimIsHeardByAll(t *testing.T) {
	r := newRig(t)
	a, b := r.device(r.open(), "eth0"), r.device(r.open(), "eth0")
	now := clock.Now()
	require.Zero(t, b.Claimed(qos.High, now))
	claim(a, qos.High, now)
	require.Equal(t, now+2*ms, a.Claimed(qos.High, now))
	require.Equal(t, now+2*ms, b.Claimed(qos.High, now+ms))
	require.Zero(t, b.Claimed(qos.Medium, now+ms))
	claim(a, qos.High, now+1)
	require.Equal(t, now+1+2*ms, a.Claimed(qos.High, now+1), "of its own each is exact")
	now += ms
	for range 200 {
		now += ms / 3
		claim(a, qos.High, now)
		require.GreaterOrEqual(t, b.Claimed(qos.High, now), now+2*ms-2*grain(interval)-ms/3, "one that is kept up")
		require.LessOrEqual(t, b.Claimed(qos.High, now), now+2*ms)
	}
}

// Claims of several processes are one word: a short one does not end a longer one of another process.
func TestTheLongestClaimCounts(t *testing.T) {
	r := newRig(t)
	a, b, c := r.device(r.open(), "eth0"), r.device(r.open(), "eth0"), r.device(r.open(), "eth0")
	now := clock.Now()
	a.Claim(qos.High, now+2*ms, now)
	b.Claim(qos.High, now+ms, now)
	require.Equal(t, now+2*ms, c.Claimed(qos.High, now))
	require.Equal(t, now+2*ms, b.Claimed(qos.High, now))
	b.Claim(qos.High, now+5*ms, now+4*ms)
	require.Equal(t, now+5*ms, c.Claimed(qos.High, now+4*ms))
}

// Slots over the shared file make the same decision as in package qos.
func TestSlotsOfTwoProcesses(t *testing.T) {
	r := newRig(t)
	a, b := r.device(r.open(), "eth0"), r.device(r.open(), "eth0")
	s := qos.Slots{Interval: interval, Borrow: true}
	now := clock.Now()/(6*ms)*(6*ms) + 6*ms // slot 0
	claim(b, qos.Low, now)
	ok, _ := s.May(qos.Low, b, now)
	require.True(t, ok, "nobody wants more")
	claim(a, qos.High, now)
	claim(b, qos.Low, now+ms)
	ok, again := s.May(qos.Low, b, now+ms)
	require.False(t, ok)
	require.Equal(t, now+2*ms, again)
	claim(b, qos.Low, again)
	ok, _ = s.May(qos.Low, b, again)
	require.True(t, ok, "after one quiet interval")
}

func TestTimesThatMakeNoSenseAreNotBelieved(t *testing.T) {
	r := newRig(t)
	a, b := r.device(r.open(), "eth0"), r.device(r.open(), "eth0")
	now := clock.Now()
	p := a.at.Load()
	for _, bad := range []clock.Time{now + 2*ahead, clock.Never, -1, -clock.Never} {
		store(p.base, deviceAt(p.device)+atWanted, uint64(bad))
		require.Nil(t, p.carry(1000, bad))
		b.looked = 0
		require.Zero(t, b.Others(now), "bytes of %d", bad)
		require.Zero(t, b.Claimed(qos.High, now), "a claim of %d", bad)
	}
	require.Nil(t, p.want(qos.High, now+ms, now+ms), "nonsense claims nothing, and is written over")
	require.Nil(t, p.carry(1<<63, now+ms))
	b.looked = 0
	require.EqualValues(t, bytesMost, b.Others(now), "his clock was read later than ours")
	require.Equal(t, now+2*ms, b.Claimed(qos.High, now))
}

func TestTheHeaderIsAsTheSeedShowsIt(t *testing.T) {
	r := newRig(t)
	d := r.device(r.open(), "eth0")
	for slot := range clock.Time(3) {
		claim(d, qos.High, 600*ms+slot*2*ms)
		b := []byte(r.content())
		require.EqualValues(t, 0x2025082772805203, binary.LittleEndian.Uint64(b))
		require.EqualValues(t, version, binary.LittleEndian.Uint32(b[8:]))
		require.EqualValues(t, slot, binary.LittleEndian.Uint32(b[12:]))
		require.Zero(t, strings.Trim(string(b[16:64]), "\x00"), "the room of the mutex")
	}
	info, err := os.Stat(r.path())
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o600), info.Mode())
}

func TestViewSaysWhoIsThere(t *testing.T) {
	r := newRig(t)
	m, n := r.open(), r.open()
	a, b := r.device(m, "eth0"), r.device(n, "eth0")
	now := clock.Now() / (6 * ms) * (6 * ms)
	a.Carries(5, now)
	b.Carries(6, now)
	require.Equal(t, View{Path: r.path(), Interval: interval, Slot: 2, Processes: 2,
		Devices: []DeviceView{{"tcp", "eth0", 6}}}, m.View(now+5*ms))
	n.Close()
	require.Equal(t, View{Path: r.path(), Interval: interval, Slot: 0, Processes: 1,
		Devices: []DeviceView{{"tcp", "eth0", 0}}}, m.View(now+6*ms))
	require.Same(t, a, m.Device("tcp", "eth0"))
}

// More devices than there is room for: those of engines that have gone make room, those of engines that are there do
// not.
func TestEntriesOfDevicesAreUsedAgain(t *testing.T) {
	r := newRig(t)
	first := r.open()
	for i := range devicesMax {
		r.device(first, fmt.Sprint("old", i))
	}
	second := r.open()
	late := second.Device("tcp", "late")
	r.device(second, "old5") // it was asked for later than late, and is attached in the same round or a later one
	require.Nil(t, late.at.Load(), "there is no room")
	late.Carries(1, clock.Now())
	require.Zero(t, late.Others(clock.Now()), "alone, as without a file")
	first.Close()
	r.until("there is room", func() bool { late.Carries(1, clock.Now()); return late.at.Load() != nil })
	third := r.open()
	now := clock.Now() + ms
	late.Carries(9, now)
	require.EqualValues(t, 9, r.device(third, "late").Others(now))
	long := strings.Repeat("x", 100)
	x, y := r.device(second, long+"1"), r.device(third, long+"2")
	x.Carries(3, now)
	require.Zero(t, y.Others(now), "long names are not one")
	require.EqualValues(t, 3, r.device(third, long+"1").Others(now))
}

// A process that dies leaves its row as it was. The next owner of the row begins with an empty one.
func TestTheRowOfTheDeadIsFoundEmpty(t *testing.T) {
	r := newRig(t)
	watcher := r.device(r.open(), "eth0")
	n := naming{path: r.path(), branch: "transports/tcp", interval: interval}
	dead, err := openFile(&n)
	require.Nil(t, err)
	require.Nil(t, dead.underTable(context.Background(), patience, dead.join))
	p := &place{base: dead.base, row: dead.row, device: watcher.at.Load().device}
	now := clock.Now()
	require.Nil(t, p.carry(77, now))
	dead.use(11)
	require.EqualValues(t, 77, watcher.Others(now))
	dead.release() // as the kernel does at its death
	unreserve(dead.base)
	heir := r.open()
	require.Equal(t, dead.row, heir.file.row)
	require.Zero(t, watcher.Others(now+ms), "although that was said just now")
	require.Zero(t, heir.file.words(rowAt(heir.file.row)+atUses, 1)[0]>>11&1)
}

func TestThereIsRoomForSoManyAndOneMoreIsTold(t *testing.T) {
	r := newRig(t)
	var all []*Memory
	for range rowsMax {
		all = append(all, r.open())
	}
	err := r.refused(nil)
	require.Equal(t, errs.TooManyRequests, err.Code)
	require.ErrorContains(t, err, r.path())
	require.ErrorContains(t, err, "transports/tcp/shared_quota_shm_path")
	all[77].Close()
	require.Equal(t, rowsMax, r.open().View(0).Processes)
}

func TestAnIdleMemorySleeps(t *testing.T) {
	r := newRig(t)
	m := r.open()
	d := r.device(m, "eth0")
	for range 3 {
		r.until("asleep", m.asleep.Load)
		claim(d, qos.Low, clock.Now())
		require.False(t, m.asleep.Load())
	}
}

func TestTakingPartAllocatesNothing(t *testing.T) {
	r := newRig(t)
	m := r.open()
	d := r.device(m, "eth0")
	now := clock.Now()
	s := qos.Slots{Interval: interval, Borrow: true}
	require.Zero(t, testing.AllocsPerRun(1000, func() {
		now += grain(interval)
		claim(d, qos.Low, now)
		_, _ = s.May(qos.Low, d, now)
		d.Carries(uint64(now), now)
		d.Others(now)
	}))
}
