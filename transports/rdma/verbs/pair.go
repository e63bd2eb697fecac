package verbs

// #include <stdlib.h>
// #include "shim.h"
import "C"

import (
	"syscall"
	"unsafe"
)

// Pair is a reliable connected queue pair.
//
//	reset ──Init──▶ init ──Connect──▶ ready to receive ──▶ ready to send ──a failed request, Fail──▶ error
//	  ▲                                                                                                │
//	  └───────────────────────────────────────────Reset────────────────────────────────────────────────┘
//
// When Reset has returned, nothing of the pair's requests reads or writes memory here, and nothing that its peer sends
// is carried out. Completions of before may still be in the queue.
type Pair struct {
	l      *C.tv_library
	c      *C.struct_tv_qp
	Number uint32
	Inline uint32 // bytes that a WRITE may carry inside its request
	Chain  []WR   // Batch of them, in memory of C
}

// Path says how to connect a pair.
type Path struct {
	GID        [16]byte // of the other end
	Pair       uint32   // there
	PSN        uint32   // that it begins with
	OwnPSN     uint32
	MTU        uint32 // 1 is 256 bytes, 5 is 4096
	LID        uint16 // of the other end, InfiniBand only
	PKey       uint16 // index of our partition key
	Port       uint8  // ours, as is all that follows
	SourceGID  uint8  // index of our address
	Hops       uint8
	Traffic    uint8  // class of the IP header
	Level      uint8  // service level
	Flow       uint32 // label of the IP header
	Bits       uint8  // of our LID, InfiniBand only
	Rate       uint8  // code of the highest rate, 0: the port's
	Global     bool   // it has addresses: always for RoCE
	Timeout    uint8  // of an acknowledgement: 4.096 µs times 2 to this power
	Retries    uint8
	RNRRetries uint8
	RNRTimer   uint8
	Reads      uint8 // under way at once
	Served     uint8 // the same of the other end's
	Access     uint8 // of the other end, see Access
}

func (p *Path) c() C.tv_path {
	c := C.tv_path{flow: C.uint32_t(p.Flow), bits: C.uint8_t(p.Bits), rate: C.uint8_t(p.Rate),
		served: C.uint8_t(p.Served), qp: C.uint32_t(p.Pair), psn: C.uint32_t(p.PSN), own_psn: C.uint32_t(p.OwnPSN),
		mtu: C.uint32_t(p.MTU), lid: C.uint16_t(p.LID), pkey: C.uint16_t(p.PKey), port: C.uint8_t(p.Port),
		sgid: C.uint8_t(p.SourceGID), hops: C.uint8_t(p.Hops), traffic: C.uint8_t(p.Traffic), sl: C.uint8_t(p.Level),
		timeout: C.uint8_t(p.Timeout), retries: C.uint8_t(p.Retries), rnr_retries: C.uint8_t(p.RNRRetries),
		rnr_timer: C.uint8_t(p.RNRTimer), reads: C.uint8_t(p.Reads), access: C.uint8_t(p.Access)}
	*(*[16]byte)(unsafe.Pointer(&c.gid)) = p.GID
	if p.Global {
		c.global = 1
	}
	return c
}

// Room is the room of a pair's send queue.
type Room struct {
	Requests int
	Ranges   int // of a request
	Inline   int // bytes inside a request; a device that cannot do as much makes the pair with less
}

// NewPair makes a pair in the state reset.
func (d *Device) NewPair(q *Queue, room Room) (*Pair, error) {
	chain := C.tv_chain_new()
	if chain == nil {
		return nil, errnoOf("queue pair of "+d.Name, syscall.ENOMEM)
	}
	inlined := C.int(room.Inline)
	c, err := C.tv_qp_new(d.l, d.pd, q.c, C.int(room.Requests), C.int(max(1, room.Ranges)), &inlined)
	if c == nil {
		C.free(unsafe.Pointer(chain))
		return nil, errnoOf("queue pair of "+d.Name, err)
	}
	return &Pair{l: d.l, c: c, Number: uint32(c.qp_num), Inline: uint32(inlined),
		Chain: unsafe.Slice((*WR)(unsafe.Pointer(chain)), Batch)}, nil
}

// Init makes the pair of a port.
func (p *Pair) Init(path *Path) error {
	c := path.c()
	return failure("init a queue pair", C.tv_qp_init(p.l, p.c, &c))
}

// Connect makes the pair receive from another one, and send. It may wait a second for the other end's link address.
func (p *Pair) Connect(path *Path) error {
	c := path.c()
	return failure("connect a queue pair", C.tv_qp_connect(p.l, p.c, &c))
}

// Fail ends the pair: requests that are out come back as flushed, and nothing is received.
func (p *Pair) Fail() error {
	return failure("fail a queue pair", C.tv_qp_state(p.l, p.c, C.TV_QPS_ERR))
}

// Reset makes the pair as it was when it was new. Requests that are out may still come back as flushed.
//
// It goes by way of the error state, which empties the send queue. Soft-RoCE of Linux 6.12 resets a pair with requests
// out wrongly: it goes on at their places, and takes a send queue that is as full as before for empty.
func (p *Pair) Reset() error {
	_ = p.Fail() // one that is new refuses, and has nothing to empty
	return failure("reset a queue pair", C.tv_qp_state(p.l, p.c, C.TV_QPS_RESET))
}

// Attributes are a pair's settings as the device has them.
type Attributes struct {
	State                          uint32 // 0 reset, 3 ready to send, 6 error
	MTU                            uint32
	Room                           Room
	Timeout, Retries, RNRRetries   uint8
	Reads, Served                  uint8
	RNRTimer, Traffic, Level, Hops uint8
	SourceGID, Bits, Rate, Port    uint8
	PKey                           uint16
	Flow                           uint32
	Received                       uint32 // the number of the packet that is due: it grows as requests come
}

// Query reads the settings back.
func (p *Pair) Query() (Attributes, error) {
	var a C.struct_tv_qp_attr
	err := failure("query a queue pair", C.tv_qp_query(p.l, p.c, &a))
	room := Room{int(a.cap.max_send_wr), int(a.cap.max_send_sge), int(a.cap.max_inline_data)}
	return Attributes{State: uint32(a.qp_state), MTU: uint32(a.path_mtu), Room: room, Timeout: uint8(a.timeout),
		Retries: uint8(a.retry_cnt), RNRRetries: uint8(a.rnr_retry), Reads: uint8(a.max_rd_atomic),
		Served: uint8(a.max_dest_rd_atomic), RNRTimer: uint8(a.min_rnr_timer),
		Traffic: uint8(a.ah_attr.traffic_class), Level: uint8(a.ah_attr.sl), Hops: uint8(a.ah_attr.hop_limit),
		SourceGID: uint8(a.ah_attr.sgid_index), Bits: uint8(a.ah_attr.src_path_bits),
		Rate: uint8(a.ah_attr.static_rate), Port: uint8(a.port_num), PKey: uint16(a.pkey_index),
		Flow: uint32(a.ah_attr.flow_label), Received: uint32(a.rq_psn)}, err
}

// WR is a work request of a pair's chain: one range here and one there. It is the library's own form, so that a posting
// copies nothing.
type WR struct {
	ID     uint64
	_      [2]uintptr // the next request, and the range at the end
	ranges int32
	Op     uint32
	Flags  uint32
	_      uint32
	Remote uint64 // as the other end's registration counts
	RKey   uint32
	_      uint32
	_      [9]uint64
	Local  uint64 // address
	Length uint32
	LKey   uint32
}

// Both sides of the border have the same layout; else one of these is no constant of that type.
const (
	_ = uint(unsafe.Sizeof(WR{})-C.sizeof_tv_request) + uint(C.sizeof_tv_request-unsafe.Sizeof(WR{}))
	_ = -(unsafe.Offsetof(WR{}.ranges) ^ unsafe.Offsetof(C.struct_tv_send_wr{}.num_sge))
	_ = -(unsafe.Offsetof(WR{}.Op) ^ unsafe.Offsetof(C.struct_tv_send_wr{}.opcode))
	_ = -(unsafe.Offsetof(WR{}.Flags) ^ unsafe.Offsetof(C.struct_tv_send_wr{}.send_flags))
	_ = -(unsafe.Offsetof(WR{}.Remote) ^ unsafe.Offsetof(C.struct_tv_send_wr{}.remote_addr))
	_ = -(unsafe.Offsetof(WR{}.RKey) ^ unsafe.Offsetof(C.struct_tv_send_wr{}.rkey))
	_ = -(unsafe.Offsetof(WR{}.Local) ^ C.sizeof_struct_tv_send_wr)
	_ = -(unsafe.Offsetof(WR{}.LKey) ^ (C.sizeof_struct_tv_send_wr + unsafe.Offsetof(C.struct_tv_sge{}.lkey)))
)

// Reach sets the range here. A request without bytes has none.
func (w *WR) Reach(local uint64, length, lkey uint32) {
	w.Local, w.Length, w.LKey, w.ranges = local, length, lkey, int32(min(length, 1))
}

// Like makes the request the same as another one.
func (w *WR) Like(other *WR) {
	w.ID, w.Op, w.Flags, w.Remote, w.RKey = other.ID, other.Op, other.Flags, other.Remote, other.RKey
	w.Reach(other.Local, other.Length, other.LKey)
}

// Operations and flags of a work request. Every failed one has a completion, the others those that are Signaled.
const (
	OpWrite  uint32 = C.TV_WR_RDMA_WRITE
	OpRead   uint32 = C.TV_WR_RDMA_READ
	Signaled uint32 = C.TV_SEND_SIGNALED
	Inlined  uint32 = C.TV_SEND_INLINE // the processor copies the bytes into the request: never memory of a device
)

// Post hands the first n requests of the pair's chain over, in one crossing. It returns how many the device took. A
// request is free to be changed then. One goroutine at a time uses the chain.
func (p *Pair) Post(n int) (int, error) {
	var posted C.int
	r := C.tv_post(p.c, (*C.tv_request)(unsafe.Pointer(unsafe.SliceData(p.Chain))), C.int(n), &posted)
	return int(posted), failure("post", r)
}

// Close ends the pair, as Reset does before. One that fails may be closed again, and posts nothing.
func (p *Pair) Close() error {
	C.free(unsafe.Pointer(unsafe.SliceData(p.Chain)))
	p.Chain = nil
	return failure("close a queue pair", C.tv_qp_end(p.l, p.c))
}
