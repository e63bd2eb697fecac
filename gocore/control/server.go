package control

import (
	"context"
	"runtime/debug"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc"

	"github.com/tent-engine/tent/gocore/clock"
	"github.com/tent-engine/tent/gocore/control/controlpb"
	"github.com/tent-engine/tent/gocore/control/intake"
	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/transport"
)

// Server answers peers on one or more addresses. Its methods may be called from any goroutine.
type Server struct {
	options   Options
	addresses []string
	listeners []*intake.Listener
	guests    *guests
	grpc      *grpc.Server
	serving   sync.WaitGroup // one goroutine per listener

	mu      sync.Mutex
	started bool
	closed  bool
}

// Listen binds the addresses without answering yet: peers that connect wait until Start. An address is "host:port";
// port 0 is any that is free on all of them; none is loopback. So an engine knows its address before anybody can ask
// for it.
//
// Errors: InvalidArgument if it is no address of this machine, RpcServiceError for a port in use, PermissionDenied.
func Listen(addresses []string, options Options) (*Server, error) {
	options = options.withDefaults()
	listeners, bound, err := bind(addresses)
	if err != nil {
		return nil, err
	}
	listeners, bound = bindBesides(options.Besides, listeners, bound)
	s := &Server{options: options, addresses: bound, guests: newGuests(&options)}
	if s.listeners, err = intake.OpenAll(listeners); err != nil {
		return nil, errs.Wrap(errs.Internal, "listen", err)
	}
	s.grpc = grpc.NewServer(s.grpcOptions()...)
	return s, nil
}

func (s *Server) grpcOptions() []grpc.ServerOption {
	return append(s.limitOptions(), grpc.UnaryInterceptor(s.guard),
		grpc.Creds(&admission{s.options.Credentials, s.options.Refused, s.options.HandshakeTimeout}))
}

// Addresses returns where the server listens, in the order in which they were given, with their ports.
func (s *Server) Addresses() []string { return slices.Clone(s.addresses) }

// Connected reports whether an engine has a connection, by which it has made a call. That ends within minutes of its
// last call.
func (s *Server) Connected(id transport.ID) bool { return s.guests.connected(id) }

// Expel closes the connections of an engine. It may come again, if it is admitted.
func (s *Server) Expel(id transport.ID) { s.guests.expel(id, func(*guest) bool { return true }) }

// ExpelAs closes the connections by which an engine has proved an identity, and none of its others.
func (s *Server) ExpelAs(id transport.ID, identity string) {
	s.guests.expel(id, func(g *guest) bool { return g.identity == identity })
}

// Start begins to answer. It must be called at most once.
func (s *Server) Start(handler Handler) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.started || s.closed {
		return
	}
	s.started = true
	controlpb.RegisterControlServer(s.grpc, &service{server: s, handler: handler})
	for _, listener := range s.listeners {
		s.serving.Go(func() {
			// Ends only when the listener was closed, which Close does: the door's other errors pass.
			_ = s.grpc.Serve(door{listener, s.guests})
			listener.Forget()
		})
	}
	s.serving.Go(func() {
		_ = s.grpc.Serve(exit{s.guests.turns.room, s.listeners[0].Addr(), s.options.HandshakeTimeout})
	})
}

// Close stops listening at once and gives calls under way half a second, or until ctx ends. Then it cancels them and
// waits for their handlers for a second more. It is an error (Timeout) when a handler is left even then. Closing again
// does nothing.
func (s *Server) Close(ctx context.Context) error {
	s.mu.Lock()
	first, started := !s.closed, s.started
	s.closed = true
	s.mu.Unlock()
	if !first {
		return nil
	}
	for _, listener := range s.listeners {
		_ = listener.Close()
	}
	_ = s.guests.turns.room.Close()
	s.guests.close(false)
	if !started {
		return nil
	}
	done := make(chan struct{})
	go func() { // ends with the last handler
		s.grpc.GracefulStop()
		s.serving.Wait()
		close(done)
	}()
	if waited(ctx, done, closeGrace) {
		return nil
	}
	s.guests.close(true)
	s.grpc.Stop() // cancels the contexts of all handlers
	if !waited(context.WithoutCancel(ctx), done, handlerGrace) {
		return errs.New(errs.Timeout, "control.close", "a handler did not return within %v of its cancellation",
			handlerGrace).
			WithScope(errs.ScopeTransport, errs.SideLocal)
	}
	return nil
}

func waited(ctx context.Context, done <-chan struct{}, limit time.Duration) bool {
	timer := time.NewTimer(limit)
	defer timer.Stop()
	select {
	case <-done:
		return true
	case <-ctx.Done():
	case <-timer.C:
	}
	return false
}

// guard surrounds every handler: a panic becomes an error, an error becomes a status with the error in it.
func (s *Server) guard(ctx context.Context, request any, info *grpc.UnaryServerInfo,
	handle grpc.UnaryHandler) (reply any, err error) {
	defer func() {
		if cause := recover(); cause != nil {
			s.options.Log.Error("control: a handler panicked", "call", info.FullMethod, "cause", cause, "stack",
				string(debug.Stack()))
			err = errs.New(errs.Internal, "control", "the peer could not answer, its log says why").
				WithScope(errs.ScopeSlice, errs.SideLocal)
		}
		err = toStatus(err)
	}()
	if err := messageArrived(ctx); err != nil {
		return nil, err
	}
	if err := s.mayCall(ctx); err != nil {
		return nil, err
	}
	return handle(ctx, request)
}

// service is the gRPC face of the server.
type service struct {
	controlpb.UnimplementedControlServer
	server  *Server
	handler Handler
}

// caller returns the caller as its connection proves it, with the caller's own words about its address and its name. It
// is never Self, since our own calls do not come this way.
func (s *service) caller(ctx context.Context, call *controlpb.Call) (transport.Peer, error) {
	shown, err := admitted(ctx)
	if err != nil {
		return transport.Peer{}, err
	}
	from, err := fromIdentity(shown, call.GetFrom())
	if err != nil {
		s.server.options.Refused(transport.RefusedMalformed, hostOf(ctx), err)
		return transport.Peer{}, err
	}
	from.Host = hostOf(ctx)
	if g := guestOf(ctx); g != nil {
		first, isNew, err := s.server.guests.identified(g, from.ID)
		if err != nil {
			return transport.Peer{}, err
		}
		if first {
			s.server.options.Admitted(from, shown, isNew)
		} else {
			s.server.options.Called(from, shown)
		}
	}
	return from, s.server.mayCall(ctx) // a look for peers to turn out may have come before this one was noted
}

// Hello answers callers of every version: they are the ones to find out that they cannot go on.
func (s *service) Hello(context.Context, *controlpb.HelloRequest) (*controlpb.HelloReply, error) {
	options := &s.server.options
	return &controlpb.HelloReply{Version: options.Version, Self: toIdentity(options.Self()),
		Addresses: s.server.addresses}, nil
}

func (s *service) Describe(ctx context.Context, request *controlpb.DescribeRequest) (*controlpb.DescribeReply, error) {
	from, err := s.caller(ctx, request.GetCall())
	if err != nil {
		return nil, err
	}
	offer, err := s.handler.Describe(ctx, from, request.GetKnownEpoch(), request.GetUpdate())
	if err != nil || offer == nil {
		return &controlpb.DescribeReply{}, err
	}
	described(ctx, len(offer.Encoded)+8*(len(offer.Closed)+len(offer.Registered)))
	reply := &controlpb.DescribeReply{Description: offer.Encoded, Transports: toTransports(offer.Transports),
		Since: offer.Since}
	for _, id := range offer.Closed {
		reply.Closed = append(reply.Closed, uint64(id))
	}
	for _, at := range offer.Registered {
		reply.Registered = append(reply.Registered, uint64(at))
	}
	reply.Now = uint64(clock.Now())
	return reply, nil
}

func (s *service) Transport(ctx context.Context, request *controlpb.TransportRequest) (*controlpb.TransportReply,
	error) {
	from, err := s.caller(ctx, request.GetCall())
	if err != nil {
		return nil, err
	}
	answer, err := s.handler.Serve(ctx, from, request.GetTransport(), request.GetMessage())
	if err != nil {
		return nil, err
	}
	return &controlpb.TransportReply{Message: answer}, nil
}

func (s *service) Notify(ctx context.Context, request *controlpb.NotifyRequest) (*controlpb.NotifyReply, error) {
	from, err := s.caller(ctx, request.GetCall())
	if err != nil {
		return nil, err
	}
	if err := s.handler.Notified(ctx, from, request.GetSequence(), request.GetMessage()); err != nil {
		return nil, err
	}
	return &controlpb.NotifyReply{}, nil
}

func (s *service) Probe(ctx context.Context, request *controlpb.ProbeRequest) (*controlpb.ProbeReply, error) {
	if _, err := s.caller(ctx, request.GetCall()); err != nil {
		return nil, err
	}
	return &controlpb.ProbeReply{}, nil
}
