package netbed

import (
	"errors"
	"sync"

	"golang.org/x/sys/unix"
)

// Sniffer keeps all packets that pass the switch of a bed.
type Sniffer struct {
	socket int
	done   sync.WaitGroup
	heard  [][]byte // packets of a few at a time
	err    error
	stop   func()
}

const (
	sniffBuffer = 256 << 20 // of the socket: the reader may be late
	sniffPiece  = 4 << 20
	packetMost  = 128 << 10 // segmentation is left to the receiver on these links
	sniffTick   = 50_000    // µs between two looks at the end
)

// Sniff begins to listen. Stop must follow.
func (b *Bed) Sniff() (s *Sniffer, err error) {
	s = &Sniffer{socket: -1}
	err = b.net.within(func() (err error) {
		s.socket, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, int(networkOrder(unix.ETH_P_ALL)))
		return err
	})
	if err == nil {
		err = errors.Join(unix.SetsockoptInt(s.socket, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, sniffBuffer),
			unix.SetsockoptTimeval(s.socket, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Usec: sniffTick}))
	}
	if err != nil {
		_ = unix.Close(s.socket)
		return nil, err
	}
	stop := make(chan struct{})
	s.done.Go(func() { s.err = s.listen(stop) })
	s.stop = sync.OnceFunc(func() { close(stop) })
	return s, nil
}

func networkOrder(n uint16) uint16 { return n<<8 | n>>8 }

// listen reads packets until stop, and then those that are still there.
func (s *Sniffer) listen(stop <-chan struct{}) error {
	piece := make([]byte, 0, sniffPiece)
	for {
		if cap(piece)-len(piece) < packetMost {
			s.heard, piece = append(s.heard, piece), make([]byte, 0, sniffPiece)
		}
		n, _, err := unix.Recvfrom(s.socket, piece[len(piece):cap(piece)], 0)
		switch {
		case err == nil:
			piece = piece[:len(piece)+n]
		case err == unix.EINTR:
		case err != unix.EAGAIN:
			return err
		default: // nothing came for a tick
			select {
			case <-stop:
				s.heard = append(s.heard, piece)
				return nil
			default:
			}
		}
	}
}

// Stop ends listening and returns the packets, whole ones behind each other, and how many were lost.
func (s *Sniffer) Stop() (heard [][]byte, lost uint32, err error) {
	s.stop()
	s.done.Wait()
	statistics, err := unix.GetsockoptTpacketStats(s.socket, unix.SOL_PACKET, unix.PACKET_STATISTICS)
	if err == nil {
		lost = statistics.Drops
	}
	return s.heard, lost, errors.Join(s.err, err, unix.Close(s.socket))
}
