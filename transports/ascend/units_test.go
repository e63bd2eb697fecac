package ascend

import (
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tent-engine/tent/gocore/config"
	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/mem"
	"github.com/tent-engine/tent/gocore/transport"
	fake "github.com/tent-engine/tent/tests/fakes/ascend"
	"github.com/tent-engine/tent/transports/transporttest"
)

// The settings of upstream reach HIXL, and mistakes in them do not.
func TestSettingsReachHIXL(t *testing.T) {
	fake.RunLinked(t, nil, nil, func(t *testing.T, npu *fake.Loaded, h *fake.Linked) {
		one := 1
		s := Settings{TrafficClass: "132", ServiceLevel: "4", AutoConnect: "1", Device: &one, Port: 21000}
		harness := suite(onNPU(npu), onNPU(npu), h)
		harness.Open = func(t *testing.T, c transporttest.Config) transport.Transport {
			tr, err := Factory{}.Open(t.Context(), s, c.Host, c.Sink)
			require.NoError(t, err)
			return tr
		}
		w := transporttest.NewWorld(t, harness)
		a := w.Open("a").Transport.(*ascend)
		require.Equal(t, "AutoConnect=1;RdmaServiceLevel=4;RdmaTrafficClass=132;", h.Options())
		name, _, err := a.instance.address()
		require.NoError(t, err)
		require.Regexp(t, `^127\.0\.0\.1:22\d{3}$`, name, "the device's ordinal times 1000 is added")
		require.Equal(t, "npu:1", a.instance.where())
	})
	for _, s := range []Settings{{TrafficClass: "133"}, {TrafficClass: "256"}, {ServiceLevel: "8"}, {ServiceLevel: "x"},
		{AutoConnect: "2"}, {AutoConnect: "-1"}} {
		_, err := checked(s)
		require.Equal(t, errs.InvalidArgument, errs.CodeOf(err), "%+v", s)
		require.ErrorContains(t, err, "transports/ascend_direct/")
	}
	s, err := checked(nil)
	require.NoError(t, err)
	require.Equal(t, 3*time.Second, s.ConnectTimeout)
	require.Equal(t, 3*time.Second, s.TransferTimeout)
	require.Empty(t, s.options())
	one := []config.Transport{{Name: Name, Number: 8, Settings: Settings{}}}
	given, err := config.Load(config.Options{Transports: one},
		map[string]any{"transports/ascend_direct/transfer_timeout_ms": 200})
	require.NoError(t, err)
	s, err = checked(given.SettingsOf(Name))
	require.NoError(t, err)
	require.Equal(t, 200*time.Millisecond, s.TransferTimeout, "in milliseconds, as newer files have it")
}

// Without a setting the device is that of the thread that opens the engine.
func TestTheDeviceIsThatOfTheThread(t *testing.T) {
	fake.RunLinked(t, fake.Settings{"DEVICES": "3"}, nil, func(t *testing.T, npu *fake.Loaded, _ *fake.Linked) {
		s, err := checked(nil)
		require.NoError(t, err)
		chosen := make(chan int)
		go func() {
			_ = (&ascend{}).onThread() // npu:0
			_ = npu.Enter(2)
			chosen <- s.device()
		}()
		require.Equal(t, 2, <-chosen)
	})
}

// Engines that begin at once find the same port free, and HIXL takes it by its number: all but one look further.
func TestEnginesThatBeginAtOnceFindPorts(t *testing.T) {
	fake.RunLinked(t, nil, nil, func(t *testing.T, npu *fake.Loaded, h *fake.Linked) {
		harness := suite(onNPU(npu), onNPU(npu), h)
		harness.Open = func(t *testing.T, c transporttest.Config) transport.Transport {
			var opened [8]transport.Transport
			var failed [len(opened)]error
			var all sync.WaitGroup
			for i := range opened {
				all.Go(func() { opened[i], failed[i] = Factory{}.Open(t.Context(), Settings{}, c.Host, c.Sink) })
			}
			all.Wait()
			require.NoError(t, errors.Join(failed[:]...))
			for _, tr := range opened[1:] {
				require.NoError(t, tr.Close(t.Context()))
			}
			return opened[0]
		}
		transporttest.NewWorld(t, harness).Open("a")
		require.EqualValues(t, 1, h.Stats().Engines)
	})
}

// Another engine may listen at our port for the moment in which it looks whether that is free.
func TestAPortAtWhichOthersLookIsNoFault(t *testing.T) {
	fake.RunLinked(t, nil, nil, func(t *testing.T, npu *fake.Loaded, h *fake.Linked) {
		harness := suite(onNPU(npu), onNPU(npu), h)
		open := harness.Open
		harness.Open = func(t *testing.T, c transporttest.Config) transport.Transport {
			h.Inject("Initialize", 1, 503900)
			return open(t, c)
		}
		transporttest.NewWorld(t, harness).Open("a")
		require.EqualValues(t, 1, h.Stats().Engines)
	})
}

// A thread that does not get the context of the device is an error of Open, which leaves nothing behind.
func TestAThreadWithoutTheDeviceIsAnError(t *testing.T) {
	for _, nth := range []int{2, threads, threads + 1} { // some thread, the last of them, the carrier
		t.Run(fmt.Sprint(nth), func(t *testing.T) {
			fake.RunLinked(t, nil, nil, func(t *testing.T, npu *fake.Loaded, h *fake.Linked) {
				warm(t)
				npu.Inject("aclrtSetCurrentContext", nth+2, 507899) // NewWorld warms up by two
				harness := suite(onNPU(npu), onNPU(npu), h)
				harness.Open = func(t *testing.T, c transporttest.Config) transport.Transport {
					_, err := Factory{}.Open(t.Context(), Settings{}, c.Host, c.Sink)
					require.ErrorContains(t, err, "aclrtSetCurrentContext: a failure of the test")
					tr, err := Factory{}.Open(t.Context(), Settings{}, c.Host, c.Sink)
					require.NoError(t, err)
					return tr
				}
				transporttest.NewWorld(t, harness).Open("a")
				require.EqualValues(t, 1, h.Stats().Engines)
			})
		})
	}
}

// Messages of a peer are noise until they are proved to be none.
func FuzzMessagesOfPeers(f *testing.F) {
	id := transport.NumberedID(7)
	r := &region{Region: mem.Region{Addr: 4096, Size: 8192, Permission: mem.GlobalReadWrite}, key: 3,
		entry: &entryOf{serial: 9}}
	f.Add([]byte(r.describe(id)))
	f.Add((&greeting{name: "127.0.0.1:20000", serial: 2, news: []news{{1, 2, true}}}).encode())
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, b []byte) {
		if m, err := decode(b, id); err == nil {
			require.LessOrEqual(t, m.base, m.base+m.size)
			require.LessOrEqual(t, m.permission, mem.GlobalReadWrite)
		}
		if g, err := decodeGreeting(b); err == nil {
			require.NotEmpty(t, g.name)
			require.Equal(t, b, g.encode())
		}
	})
}
