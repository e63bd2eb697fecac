package shm

import (
	"encoding/binary"

	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/transport"
	"github.com/tent-engine/tent/transports/host/hazard"
	"github.com/tent-engine/tent/transports/kit"
)

// version is that of calls and descriptors. Another one is refused: both processes run on one host, usually one build.
const version = 2

// descriptor names a region of ours to peers. They read its place and their permission in our manifest.
func descriptor(name hazard.Region, owner transport.ID) transport.Descriptor {
	b := binary.LittleEndian.AppendUint32([]byte{version}, name.Index)
	return append(binary.LittleEndian.AppendUint32(b, name.Generation), owner[:]...)
}

// readDescriptor checks a descriptor of one peer.
func readDescriptor(b transport.Descriptor, peer transport.ID) (hazard.Region, *errs.Error) {
	r := kit.NewReader(b)
	v, name, owner := r.U8(), hazard.Region{Index: r.U32(), Generation: r.U32()}, r.ID()
	switch {
	case v != version || !r.Whole():
		return name, errs.New(errs.InvalidArgument, "shm.import", "not a shm descriptor of version %d: %d bytes",
			version, len(b))
	case name.Generation == 0 || name.Index >= hazard.RegionsMax:
		return name, errs.New(errs.InvalidArgument, "shm.import", "descriptor of an impossible region")
	case owner != peer:
		return name, errs.New(errs.PeerRestarted, "shm.import", "the region belongs to another engine than the peer").
			WithScope(errs.ScopeLink, errs.SideRemote)
	}
	return name, nil
}
