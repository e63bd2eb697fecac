package shm

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tent-engine/tent/gocore/errs"
)

func TestSettingsThatCannotBeUsedNameTheKey(t *testing.T) {
	for key, s := range map[string]Settings{
		"trust": {Trust: "everybody"}, "cxl_mount_path": {CXLMountPath: "relative"}, "copy_workers": {Workers: 65},
		"async_memcpy_threshold": {InlineBytes: 2 << 30},
	} {
		_, err := Factory{}.Open(context.Background(), s, nil, nil)
		require.Equal(t, errs.InvalidArgument, errs.CodeOf(err))
		require.ErrorContains(t, err, "transports/shm/"+key)
	}
	_, err := Factory{}.Open(context.Background(), 7, nil, nil)
	require.ErrorContains(t, err, "int")
}
