package rdma

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// TestDevicesComeInAnOrderThatBothEndsShare: the library's order changes when a device is made again, and the i-th
// device here is paired with the i-th there.
func TestDevicesComeInAnOrderThatBothEndsShare(t *testing.T) {
	listed := []string{"mlx5_10", "mlx5_2", "mlx5_0", "rxe0"}
	require.Equal(t, []string{"rxe0", "mlx5_0", "mlx5_2", "mlx5_10"}, (&Settings{}).chosen(listed))
	named := &Settings{Devices: []string{"mlx5_2", "gone", "mlx5_10", "mlx5_0"}}
	require.Equal(t, []string{"mlx5_2", "mlx5_10", "mlx5_0"}, named.chosen(listed))
	require.Equal(t, []string{"mlx5_10", "mlx5_2", "mlx5_0", "rxe0"}, listed, "as it was")
}
