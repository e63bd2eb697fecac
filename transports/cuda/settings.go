package cuda

// Settings is the branch transports/nvlink: each tagged field is a key. Upstream's other keys are kept, and have no
// effect.
type Settings struct {
	Trust string `key:"trust" takes:"same-uid|none" default:"same-uid" help:"Peers that may map memory of our GPUs: those of the same user, or nobody (all then goes by another transport)."`

	Copying

	apart bool // for tests: engines of one process count as those of two
}

// trustNone is the value of Trust that lets nobody in.
const trustNone = "none"

// FabricSettings is the branch transports/mnnvl.
type FabricSettings struct {
	HandleType string `key:"handle_type" takes:"fabric|posix_fd" default:"fabric" help:"How memory of allocate() can be shared: between hosts too, or within this one alone."`

	Copying
}

// handlesFabric is the value of HandleType that makes memory for other hosts.
const handlesFabric = "fabric"

// Copying has the settings that both transports have.
type Copying struct {
	HostRegister bool `key:"host_register" default:"false" help:"Pin regions of the host while they are registered, so that GPUs copy there directly; registering such a region takes longer."`

	SliceBytes uint64 `key:"slice_bytes" takes:"4KiB..64MiB" unit:"B" default:"64MiB" help:"Most bytes of a slice between GPUs; one to or from pinned memory of the host has 8 MiB at most, and one of other memory 1 MiB."`

	CopyKernel bool `key:"copy_kernel" default:"false" help:"Pages of GPUs are copied by a kernel, many at a time, instead of one by one by the copy engines. It takes processors of the GPU, and a page that is freed meanwhile ends the GPU for the process."`
}
