package manifest

import (
	"errors"
	"fmt"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/tent-engine/tent/gocore/mem"
	"github.com/tent-engine/tent/transports/host/vm"
)

// Claim is a peer's own word about itself in a greeting: its process, and its manifest there.
type Claim struct {
	PID     uint32
	Started uint64
	File    vm.File
}

// Claims returns our own claim.
func (m *Manifest) Claims(me vm.Identity) Claim { return Claim{me.PID, me.Started, m.file} }

// Meet returns the process that a peer claims to be, and its manifest, if both are those of the engine with that id.
// Both must be in the hands of our own user. The error is for our own eyes; it wraps ESRCH when there is no such
// process.
func Meet(me vm.Identity, claim Claim, id ID) (*vm.Process, *View, error) {
	p, err := vm.Open(claim.PID, claim.Started)
	if err != nil {
		return nil, nil, err
	}
	v, err := meet(me, p, claim.File, id)
	if err != nil {
		p.Close()
		return nil, nil, err
	}
	return p, v, nil
}

func meet(me vm.Identity, p *vm.Process, f vm.File, id ID) (*View, error) {
	if id == (ID{}) {
		return nil, fmt.Errorf("process %d: the peer has no id", p.PID())
	}
	if err := p.Apart(me); err != nil {
		return nil, err
	}
	title, err := p.Title(f)
	if err != nil {
		return nil, fmt.Errorf("process %d shows no manifest: %w", p.PID(), err)
	}
	if !strings.HasPrefix(title, "/memfd:"+name+" ") {
		return nil, fmt.Errorf("descriptor %d of process %d is %q, not a manifest", f.Fd, p.PID(), title)
	}
	fd, err := p.Reopen(f, unix.O_RDONLY)
	if err != nil {
		return nil, err
	}
	defer unix.Close(fd)
	v, err := read(fd, me.UID, id)
	if err != nil {
		return nil, fmt.Errorf("the manifest of process %d: %w", p.PID(), err)
	}
	return v, nil
}

// read maps a manifest after checking that a process of that user made it, for the engine with that id.
func read(fd int, uid uint32, id ID) (*View, error) {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return nil, err
	}
	var fs unix.Statfs_t
	if err := unix.Fstatfs(fd, &fs); err != nil {
		return nil, err
	}
	has, err := unix.FcntlInt(uintptr(fd), unix.F_GET_SEALS, 0)
	switch {
	case err != nil:
		return nil, fmt.Errorf("it is not a memfd: %w", err)
	case has&seals != seals:
		return nil, fmt.Errorf("it is not sealed: %#x", has)
	case fs.Type == unix.HUGETLBFS_MAGIC: // somebody may take its pages, and the kernel have no others to touch
		return nil, errors.New("it is made of huge pages")
	case st.Uid != uid:
		return nil, fmt.Errorf("user %d has made it, we are user %d", st.Uid, uid)
	case st.Size < headBytes || st.Size > int64(sizeOf(CountMax)):
		return nil, fmt.Errorf("it has %d bytes", st.Size)
	}
	at, err := unix.MmapPtr(fd, 0, nil, uintptr(st.Size), unix.PROT_READ, unix.MAP_SHARED)
	if err != nil {
		return nil, fmt.Errorf("mmap: %w", err)
	}
	v := &View{addr: uintptr(at), size: uintptr(st.Size)}
	h := *(*head)(mem.Pointer(v.addr))
	switch {
	case h.magic != magic || h.version != version || sizeOf(h.count) != v.size:
		err = fmt.Errorf("it begins with %#x, version %d, %d regions", h.magic, h.version, h.count)
	case h.id != id:
		err = fmt.Errorf("it is of engine %x, the peer is %x", h.id, id)
	}
	if err != nil {
		v.Unmap()
		return nil, err
	}
	v.count = h.count
	return v, nil
}
