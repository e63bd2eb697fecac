package tcp

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"net/netip"
	"slices"

	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/transport"
	"github.com/tent-engine/tent/transports/kit"
)

// Calls over the control plane. A request is version, the kind of call, and: for hello the least protection that the
// caller takes and its cipher (version 3), for ask an attachment and frames, for wanted the attachment that the called
// side was given and a lane's number. An answer begins with version and id. The control plane knows the caller: an
// attachment is only its own peer's.
const (
	callHello  = 1 // initiator: let me in. Answer: offer
	callAsk    = 2 // initiator: WITHDRAW, FENCE and LEAVE frames, when no lane carries them. Answer: known, frames
	callWanted = 3 // responder: does the sender still want this lane's bytes? Answer: known, CONFIRMs of void numbers
)

const answerMax = 1 << 20

// offer is the answer to a hello.
type offer struct {
	owner      transport.ID
	attachment attachmentID
	secret     secret
	requests   uint32
	bytes      uint64
	machine    string // its kernel
	network    string // its network namespace: see transport.Peer
	addresses  []netip.AddrPort
	shield     shield // since version 3
}

var errShort = errors.New("message is cut off")

func beginAnswer(v uint8, owner transport.ID) []byte {
	return append([]byte{v}, owner[:]...)
}

func (o offer) append(b []byte, v uint8) []byte {
	b = append(b, o.attachment[:]...)
	b = append(b, o.secret[:]...)
	b = binary.LittleEndian.AppendUint32(b, o.requests)
	b = binary.LittleEndian.AppendUint64(b, o.bytes)
	b = kit.AppendText(b, o.machine)
	b = kit.AppendText(b, o.network)
	first := o.addresses[:min(len(o.addresses), addressesMax)]
	b = append(b, byte(len(first)))
	for _, a := range first {
		b = kit.AppendText(b, a.String())
	}
	if v > versionFirst {
		b = append(b, byte(o.shield.protection), byte(o.shield.suite))
	}
	return b
}

func readAttachment(r *kit.Reader) attachmentID { return attachmentID(r.Bytes(len(attachmentID{}))) }

func readOffer(r *kit.Reader, v uint8, owner transport.ID) (o offer, err error) {
	o = offer{owner: owner, attachment: readAttachment(r), secret: secret(r.Bytes(len(secret{}))),
		requests: r.U32(), bytes: r.U64(), machine: r.Text(),
		network: r.Text()}
	for range r.U8() { // all are read, for more follows behind them
		a, err := netip.ParseAddrPort(r.Text())
		if err != nil {
			return o, err
		}
		if plain(a) && len(o.addresses) < addressesMax {
			o.addresses = append(o.addresses, a)
		}
	}
	if v > versionFirst {
		o.shield = shield{transport.Protection(r.U8()), cipherSuite(r.U8())}
	}
	switch {
	case r.Short():
		return o, errShort
	case o.shield.check() != nil:
		return o, o.shield.check()
	case o.requests < requestsMin || len(o.addresses) == 0:
		return o, errors.New("peer offers nothing")
	}
	return o, nil
}

// readFrames calls f for each frame of a message; payload is not possible here.
func readFrames(r *kit.Reader, f func(header, []record) error) error {
	for r.Left() > 0 {
		h := getHeader(r.Bytes(headerBytes))
		if r.Short() || h.count > recordsMax || h.length != 0 || r.Left() < int(h.count)*recordBytes {
			return errShort
		}
		table := make([]record, h.count)
		for i := range table {
			table[i] = getRecord(r.Bytes(recordBytes))
		}
		if err := f(h, table); err != nil {
			return err
		}
	}
	if r.Short() {
		return errShort
	}
	return nil
}

// Serve answers a peer's transport.
func (t *Transport) Serve(_ context.Context, from transport.Peer, message []byte) ([]byte, error) {
	switch {
	case t.quiet.Load(): // the error proves that nothing lands here any more
		return nil, kit.Closed("tcp.serve")
	case t.life.Closed():
		return nil, errs.New(errs.Timeout, "tcp.serve", "transport is closing").
			WithScope(errs.ScopeTransport, errs.SideLocal)
	}
	r := kit.NewReader(message)
	v := r.U8()
	if r.Short() || !t.speaks(v) {
		err := errs.New(errs.Protocol, "tcp.serve", "peer speaks version %d of the tcp transport, this is %v", v,
			t.versions()).WithScope(errs.ScopeLink, errs.SideRemote).WithPeer(from.Address, Name, "")
		t.host.Refused(transport.RefusedVersion, from.Address, err)
		return nil, err // the caller has to know this one: it takes another route
	}
	answer := beginAnswer(v, t.self.ID)
	var err error
	switch call := r.U8(); call {
	case callHello:
		answer, err = t.serveHello(from, v, r, answer)
	case callAsk:
		answer, err = t.serveAsk(from, r, answer)
	case callWanted:
		answer, err = t.serveWanted(from, r, answer)
	default:
		err = errs.New(errs.Protocol, "tcp.serve", "unknown call %d", call)
	}
	if err != nil {
		return nil, t.refuseCall(from, errs.Wrap(errs.Protocol, "tcp.serve", err))
	}
	return answer, nil
}

// refuseCall counts a call that was refused and returns the error for the caller, with one text for all
// reasons.
func (t *Transport) refuseCall(from transport.Peer, cause *errs.Error) *errs.Error {
	reason := transport.RefusedMalformed
	if cause.Code == errs.TooManyRequests {
		reason = transport.RefusedLimit
	}
	t.host.Refused(reason, from.Address, cause)
	return errs.New(cause.Code, "tcp.serve", "the peer refuses, and its log has the reason").
		WithScope(errs.ScopeLink, errs.SideRemote)
}

func (t *Transport) serveHello(from transport.Peer, v uint8, r *kit.Reader, answer []byte) ([]byte, error) {
	var agreed shield
	if v > versionFirst {
		wanted, theirs := transport.Protection(r.U8()), cipherSuite(r.U8())
		agreed = agree(t.self.Protects, wanted, ownSuite(), theirs)
		if err := agreed.check(); r.Short() || err != nil {
			return nil, cmp.Or(err, errShort)
		}
	}
	a, err := t.attachments.issue(from, v, agreed)
	if err != nil {
		return nil, err
	}
	o := offer{attachment: a.id, secret: a.secret, shield: agreed,
		requests: uint32(t.settings.CreditRequests), bytes: t.settings.CreditBytes,
		machine: t.self.MachineID, network: t.self.Network}
	for _, l := range t.listeners {
		o.addresses = append(o.addresses, l.addr)
	}
	return o.append(answer, v), nil
}

func (t *Transport) serveAsk(from transport.Peer, r *kit.Reader, answer []byte) ([]byte, error) {
	a := t.attachments.lookUp(readAttachment(r), from.ID)
	if r.Short() {
		return nil, errShort
	}
	if a == nil { // forgotten, so none of its lanes is open and nothing can land
		return append(answer, 0), nil
	}
	answer = append(answer, 1)
	reply := func(h header, list []record) { answer = appendFrame(answer, h, list...) }
	err := readFrames(r, func(h header, table []record) error {
		switch {
		case len(answer) > answerMax:
			return errors.New("too many questions")
		case h.kind == kindWithdraw && h.count > 0:
			a.withdraw(h.seq, table, reply)
		case h.kind == kindFence && h.count == 0:
			a.fence(h.seq, reply)
		case h.kind == kindLeave && h.count == 0:
			a.leaveCame()
		default:
			return errors.New("unexpected " + h.kind.String())
		}
		return nil
	})
	return answer, err
}

// serveWanted answers a responder that has slept: our lane is known, but for these numbers.
func (t *Transport) serveWanted(from transport.Peer, r *kit.Reader, answer []byte) ([]byte, error) {
	key, id := readAttachment(r), r.U64()
	if r.Short() {
		return nil, errShort
	}
	for _, c := range t.conns.All() {
		l, is := c.lane.(*initiatorLane)
		if !is || l.id != id || l.link.attachment() != key || l.set.owner != from.ID {
			continue
		}
		l.mu.Lock()
		if l.isDown() {
			l.mu.Unlock()
			break
		}
		var void []record
		for seq := l.out.head; seq < l.out.next; seq++ {
			if l.out.at(seq).asked {
				void = append(void, record{id: seq, length: verdictVoid})
			}
		}
		l.mu.Unlock()
		answer = append(answer, 1)
		for part := range slices.Chunk(void, recordsMax) {
			answer = appendFrame(answer, header{kind: kindConfirm, seq: id}, part...)
		}
		return answer, nil
	}
	return append(answer, 0), nil
}
