package verbs

// #include <stdlib.h>
// #include "shim.h"
import "C"

import (
	"bytes"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Device is a device that is open, with one protection domain.
type Device struct {
	Name string
	l    *C.tv_library
	c    *C.struct_tv_context
	pd   *C.struct_tv_pd
}

// Limits are the bounds of a device.
type Limits struct {
	Requests  int // of a queue pair
	Ranges    int // of a request
	Entries   int // of a completion queue
	Reads     int // under way at once on a queue pair, at either end
	Pairs     int
	Memory    uint64 // bytes of one registration
	Firmware  string
	VendorID  uint32
	VendorRev uint32
}

// Port is the state of a port.
type Port struct {
	Active   bool
	Ethernet bool // RoCE; else InfiniBand
	MTU      int  // as the interface counts: 1 is 256 bytes, 5 is 4096
	GIDs     int  // entries of the table, many of them empty
	LID      uint16
	Global   bool   // InfiniBand: packets need global headers, since the port shares its LID with others
	Message  uint32 // the most bytes of one work request
	Width    uint8
	Speed    uint8
}

// GID is an address of a port.
type GID struct {
	GID       [16]byte
	Index     int
	Port      int
	RoCEv2    bool
	InfiniBnd bool // an entry of an InfiniBand port
	Interface int  // index of the netdev behind it, 0 for none
}

// Open opens a device by its name.
func (l *Library) Open(name string) (*Device, error) {
	text := C.CString(name)
	defer C.free(unsafe.Pointer(text))
	c, err := C.tv_open(l.c, text)
	if c == nil {
		return nil, errnoOf("open "+name, err)
	}
	pd, err := C.tv_pd_new(l.c, c)
	if pd == nil {
		C.tv_close(l.c, c)
		return nil, errnoOf("protection domain of "+name, err)
	}
	return &Device{name, l.c, c, pd}, nil
}

// Close closes the device. It fails while something of it is there.
func (d *Device) Close() error {
	if err := failure("close the protection domain of "+d.Name, C.tv_pd_end(d.l, d.pd)); err != nil {
		return err
	}
	return failure("close "+d.Name, C.tv_close(d.l, d.c))
}

// Abandon closes the descriptors of a device that the kernel has taken away, where nothing else can be ended any more.
// The library keeps the memory of its objects, unless RDMAV_ALLOW_DISASSOC_DESTROY was set before it was loaded.
func (d *Device) Abandon() {
	_ = unix.Close(int(d.c.cmd_fd))
	_ = unix.Close(int(d.c.async_fd))
}

// AsyncFd is readable when Event has something. It belongs to the library and does not block.
func (d *Device) AsyncFd() int { return int(d.c.async_fd) }

// Limits asks the device for its bounds.
func (d *Device) Limits() (Limits, error) {
	var a C.struct_tv_device_attr
	if err := failure("query "+d.Name, C.tv_limits(d.l, d.c, &a)); err != nil {
		return Limits{}, err
	}
	firmware := unsafe.Slice((*byte)(unsafe.Pointer(&a.fw_ver[0])), len(a.fw_ver))
	firmware, _, _ = bytes.Cut(firmware, []byte{0})
	return Limits{Requests: int(a.max_qp_wr), Ranges: int(a.max_sge), Entries: int(a.max_cqe),
		Reads: int(min(a.max_qp_rd_atom, a.max_qp_init_rd_atom)), Pairs: int(a.max_qp), Memory: uint64(a.max_mr_size),
		Firmware: string(firmware), VendorID: uint32(a.vendor_id), VendorRev: uint32(a.hw_ver)}, nil
}

// Port asks for the state of a port, counted from 1.
func (d *Device) Port(number int) (Port, error) {
	var a C.struct_tv_port_attr
	if err := failure("query the port of "+d.Name, C.tv_port(d.l, d.c, C.int(number), &a)); err != nil {
		return Port{}, err
	}
	return Port{a.state == C.TV_PORT_ACTIVE, a.link_layer == C.TV_LINK_ETHERNET, int(a.active_mtu), int(a.gid_tbl_len),
		uint16(a.lid), a.flags&C.TV_PORT_NEEDS_GRH != 0, uint32(a.max_msg_sz), uint8(a.active_width),
		uint8(a.active_speed)}, nil
}

// gidsMost bounds the addresses of a device, of all ports.
const gidsMost = 1 << 14

// GIDs returns the addresses of a port. Tables have hundreds of entries, of which a few are used most often. The kernel
// refuses a list that is too short for all of them, and says no number.
func (d *Device) GIDs(port int) ([]GID, error) {
	var table []C.struct_tv_gid_entry
	const short = -C.int(syscall.EINVAL)
	n := short
	for most := 256; n == short && most <= gidsMost; most *= 4 {
		table = make([]C.struct_tv_gid_entry, most)
		n = C.tv_gids(d.l, d.c, &table[0], C.int(most))
	}
	if n < 0 {
		return nil, failure("addresses of "+d.Name, n)
	}
	var list []GID
	for i := range table[:n] {
		e := &table[i]
		if int(e.port_num) != port {
			continue
		}
		list = append(list, GID{*(*[16]byte)(unsafe.Pointer(&e.gid)), int(e.gid_index), port,
			e.gid_type == C.TV_GID_ROCE_V2, e.gid_type == C.TV_GID_IB, int(e.ndev_ifindex)})
	}
	return list, nil
}

// Event is news of a device that nobody asked for.
type Event struct {
	Type  uint32 // see EventName
	About uint32 // number of the queue pair or the port
}

// Event takes the next event. The error is EAGAIN when there is none.
func (d *Device) Event() (Event, error) {
	var kind, about C.uint32_t
	r := C.tv_event(d.l, d.c, &kind, &about)
	return Event{uint32(kind), uint32(about)}, failure("event of "+d.Name, r)
}

// Access is the rights that the keys of memory give.
type Access uint32

// Rights, to be added.
const (
	LocalWrite  Access = C.TV_ACCESS_LOCAL_WRITE
	RemoteWrite Access = C.TV_ACCESS_REMOTE_WRITE
	RemoteRead  Access = C.TV_ACCESS_REMOTE_READ
	Relaxed     Access = C.TV_ACCESS_RELAXED_ORDERING // a hint: devices that cannot leave it out
)

// Memory is registered memory: its pages are pinned until Close.
type Memory struct {
	l    *C.tv_library
	c    *C.struct_tv_mr
	LKey uint32
	RKey uint32
}

// Register pins memory. Work requests name its first byte as first. Pages that are not there are made.
func (d *Device) Register(at uintptr, size, first uint64, access Access) (*Memory, error) {
	c, err := C.tv_register(d.l, d.pd, C.uintptr_t(at), C.size_t(size), C.uint64_t(first), C.unsigned(access))
	if c == nil {
		return nil, errnoOf("register memory with "+d.Name, err)
	}
	return &Memory{d.l, c, uint32(c.lkey), uint32(c.rkey)}, nil
}

// RegisterDMABuf registers size bytes of a dma-buf, from an offset on. The kernel keeps the buffer, and its descriptor
// may be closed afterwards.
func (d *Device) RegisterDMABuf(fd int, offset, size, first uint64, access Access) (*Memory, error) {
	c, err := C.tv_register_dmabuf(d.l, d.pd, C.int(fd), C.uint64_t(offset), C.size_t(size), C.uint64_t(first),
		C.unsigned(access))
	if c == nil {
		return nil, errnoOf("register a dma-buf with "+d.Name, err)
	}
	return &Memory{d.l, c, uint32(c.lkey), uint32(c.rkey)}, nil
}

// Close ends the keys. When it returns, the device touches the memory no more. It may be called again, also
// after an error.
func (m *Memory) Close() error {
	if m.c == nil {
		return nil
	}
	err := failure("deregister memory", C.tv_deregister(m.l, m.c))
	if err == nil {
		m.c = nil
	}
	return err
}
