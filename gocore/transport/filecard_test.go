package transport

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tent-engine/tent/gocore/errs"
)

var cards = []FileCard{{Path: "/"},
	{Path: "/weights/layer-00.bin", Device: 1<<63 + 5, Inode: 77, Size: 1 << 40, BornNs: 1<<60 + 9},
	{Path: "/" + strings.Repeat("a", FilePathMax-1), Size: 1, ReadOnly: true},
	{Path: "/cached", Cached: true}, {Path: "/both", ReadOnly: true, Cached: true}}

func TestACardComesBackAsItWas(t *testing.T) {
	for _, card := range cards {
		read, err := DecodeFileCard(card.Encode())
		require.Nil(t, err)
		require.Equal(t, card, *read)
	}
}

func TestADamagedCardNamesNoFile(t *testing.T) {
	good := cards[1].Encode()
	for i := range good {
		bad := append(Descriptor{}, good...)
		bad[i] ^= 1
		_, err := DecodeFileCard(bad)
		require.Equal(t, errs.InvalidArgument, errs.CodeOf(err), "byte %d", i)
		_, err = DecodeFileCard(good[:i])
		require.Equal(t, errs.InvalidArgument, errs.CodeOf(err), "cut at %d", i)
	}
	for _, path := range []string{"", "relative", "/" + strings.Repeat("a", FilePathMax)} {
		_, err := DecodeFileCard((&FileCard{Path: path}).Encode())
		require.Equal(t, errs.InvalidArgument, errs.CodeOf(err), "%.20s", path)
	}
}

func FuzzFileCard(f *testing.F) {
	for _, card := range cards {
		f.Add([]byte(card.Encode()))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		card, err := DecodeFileCard(data)
		if err != nil {
			require.Equal(t, errs.InvalidArgument, err.Code)
			return
		}
		require.Equal(t, Descriptor(data), card.Encode(), "one card has one encoding")
	})
}
