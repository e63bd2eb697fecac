package segment

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/mem"
	"github.com/tent-engine/tent/gocore/transport"
)

func example(t testing.TB, regions int) *Description {
	d := &Description{Address: "10.0.0.5:41233", Others: []string{"[fe80::1]:41233"}, Name: "decode-0",
		MachineID: "0123456789abcdef0123456789abcdef", ID: transport.ID{0xfe, 15: 0x10}, Version: "1.2.3", Epoch: 77}
	for i := range regions {
		d.Regions = append(d.Regions, Region{
			ID: mem.RegionID(i+1) | 1<<32, Name: fmt.Sprintf("model.layers.%d.self_attn.k_cache",
				i), Addr: 0x7f0000000000 + uint64(i)<<30,
			Size: 1 << 30, Location: "cuda:1", Kind: mem.Cuda, Permission: mem.GlobalReadWrite, ReadOnly: i%2 == 0,
			Descriptors: map[string]transport.Descriptor{"tcp": {1, byte(i)}, "rdma": bytes.Repeat([]byte{2}, 40)}})
	}
	require.NoError(t, d.Seal())
	return d
}

func TestDescriptionsSurviveTheWire(t *testing.T) {
	for _, n := range []int{0, 1, 100} {
		d := example(t, n)
		data := Encode(d, true)
		got, err := Decode(data)
		require.NoError(t, err)
		if n == 0 {
			got.Regions = d.Regions // nil or empty is the same
		}
		require.Equal(t, d, got)
		require.Equal(t, data, Encode(got, true))
	}
}

func TestBlobLeavesDescriptorsOut(t *testing.T) {
	got, err := Decode(Encode(example(t, 3), false))
	require.NoError(t, err)
	for i := range got.Regions {
		require.Nil(t, got.Regions[i].Descriptors)
		require.Equal(t, mem.Location("cuda:1"), got.Regions[i].Location)
	}
	require.NotNil(t, got.Find("model.layers.2.self_attn.k_cache"))
}

func TestBlobStaysWithinItsBound(t *testing.T) {
	for _, n := range []int{0, 1, 64, 5000} {
		size := len(Encode(example(t, n), false))
		t.Logf("%d regions: %d bytes", n, size)
		require.LessOrEqual(t, size, 1024+64*n)
	}
}

func TestEveryCutAndEveryFlippedBitIsNoticed(t *testing.T) {
	data := Encode(example(t, 2), true)
	for n := range data {
		_, err := Decode(data[:n])
		require.Equal(t, errs.InvalidArgument, errs.CodeOf(err), "cut at %d", n)
		damaged := bytes.Clone(data)
		damaged[n] ^= 1
		_, err = Decode(damaged)
		require.Equal(t, errs.InvalidArgument, errs.CodeOf(err), "byte %d", n)
	}
	_, err := Decode(append(bytes.Clone(data), 0))
	require.ErrorContains(t, err, "checksum")
}

// withSum makes body acceptable to the checksum, as a hostile sender would.
func withSum(body []byte) []byte {
	return binary.LittleEndian.AppendUint32(bytes.Clone(body), crc32.Checksum(body, castagnoli))
}

func TestHostileCountsAllocateNothing(t *testing.T) {
	head := Encode(&Description{}, false)
	head = head[:len(head)-sumSize-1] // without the count of regions
	hostile := withSum(binary.AppendUvarint(head, RegionsMax))
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	_, err := Decode(hostile)
	runtime.ReadMemStats(&after)
	require.ErrorContains(t, err, "a count is larger")
	require.Less(t, after.TotalAlloc-before.TotalAlloc, uint64(100_000), "not the megabytes that the count asks for")
}

// The engine finds a range in one region and its record by the id: it would be that of the other, at a wrong offset.
func TestADescriptionWithAnIdTwiceIsRefused(t *testing.T) {
	d := example(t, 3)
	d.Regions[2].ID = d.Regions[0].ID
	for _, descriptors := range []bool{false, true} {
		_, err := Decode(Encode(d, descriptors))
		require.Equal(t, errs.InvalidArgument, errs.CodeOf(err))
		require.ErrorContains(t, err, "two regions have the id")
	}
}

func TestAnotherFormatIsNamed(t *testing.T) {
	data := Encode(&Description{}, false)
	data[len(magic)] = 9
	_, err := Decode(withSum(data[:len(data)-sumSize]))
	require.ErrorContains(t, err, "format 9, this version of tent reads 2")
	_, err = Decode([]byte("certainly not"))
	require.ErrorContains(t, err, "not an exported description")
}

// FuzzDecode mends the checksum, so that the fuzzer gets behind it, and demands that a decoded description encodes to
// the same.
func FuzzDecode(f *testing.F) {
	for _, n := range []int{0, 1, 3} {
		for _, descriptors := range []bool{false, true} {
			data := Encode(example(f, n), descriptors)
			f.Add(data[:len(data)-sumSize])
		}
	}
	f.Add(Encode(leased(f), true))
	f.Add([]byte(magic))
	f.Fuzz(func(t *testing.T, body []byte) {
		d, err := Decode(withSum(body))
		if err != nil {
			require.Equal(t, errs.InvalidArgument, errs.CodeOf(err))
			return
		}
		again, err := Decode(Encode(d, true))
		require.NoError(t, err)
		require.Equal(t, Encode(d, true), Encode(again, true))
		for i := range d.Regions {
			if r := &d.Regions[i]; r.Lease == 0 {
				require.NotNil(t, d.Containing(r.Addr, r.Size))
			}
		}
	})
}
