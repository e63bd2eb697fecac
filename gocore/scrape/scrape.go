// Package scrape answers HTTP requests for an engine's figures: Prometheus' text under /metrics, and the latest events
// as JSON under /events. Prometheus scrapes the one, `tent top` draws both.
//
// It is HTTP and not a question to the control plane (2026-11): scrapers speak HTTP anyway, figures need no admission
// by peers, to switch the endpoint off switches all of it off, and the protocol between engines stays about
// moving bytes. A question to the control plane would have shown every admitted peer the names and rates of all others.
//
// Callers are not trusted. Admit may refuse them: an engine in mode local admits the users that may be its peers. A
// server holds at most connectionsMax connections, each with limits for a request's head, the answer and silence;
// further ones are closed at once. Connections that are refused have places of their own, so they keep out nobody else,
// and hear why. A flood of scrapes costs one snapshot a freshFor, which all that ask share.
package scrape

import (
	"context"
	"encoding/json"
	"io"
	"log"
	"net"
	"net/http"
	"strconv"
	"sync"
	"time"

	"github.com/tent-engine/tent/gocore/errs"
)

// Limits of a server.
const (
	connectionsMax = 16
	headBytes      = 8 << 10
	headLimit      = 2 * time.Second  // from the connection, or the request before, to the end of a head
	answerLimit    = 10 * time.Second // for a reader to take its answer
	idleLimit      = 15 * time.Second // a scraper that comes more often keeps its connection
	closeLimit     = time.Second      // for answers under way
	freshFor       = 100 * time.Millisecond
	eventsPerReply = 256
)

// Source is the engine behind a server. Its functions are called from one goroutine at a time.
type Source struct {
	Metrics func() (string, error)
	// Events returns up to most events for JSON, from the number after on. next is the number of the first one behind
	// them, and lost counts those that are not kept any more.
	Events func(after uint64, most int) (events any, next, lost uint64)
	Now    func() int64 // of the clock of events, in nanoseconds
	// Admit refuses a connection by an error, when it is accepted; nil admits anybody.
	Admit func(caller net.Conn) error
	// Refused hears of each request of one that was not admitted. It may run on many goroutines at once.
	Refused func(caller net.Conn, cause error)
}

// notAdmitted is all that a caller hears that Admit refuses.
const notAdmitted = "this engine shows its figures to processes of its own user: the setting security/local_users " +
	"admits others"

// callerKey finds the connection of a request in its context.
type callerKey struct{}

// Server answers until Close. Its methods may be called from any goroutine.
type Server struct {
	source   Source
	http     http.Server
	listener net.Listener
	served   sync.WaitGroup // the accepting goroutine, and answers under way

	mu      sync.Mutex // serializes the source; held while an answer is made, never while it is sent
	metrics string     // the latest text
	made    time.Time  // when it was made; zero: never
	closed  bool
}

// Listen starts a server at "host:port"; port 0 takes a free one. The errors are RpcServiceError, with the address.
func Listen(address string, source Source) (*Server, error) {
	listener, err := net.Listen("tcp", address)
	if err != nil {
		return nil, errs.Wrap(errs.RpcServiceError, "metrics: listen", err).
			WithHint("choose another port, or 0 for a free one")
	}
	s := &Server{source: source, listener: limit(listener, source.Admit)}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /metrics", s.answer(s.writeMetrics))
	mux.HandleFunc("GET /events", s.answer(s.writeEvents))
	mux.HandleFunc("GET /{$}", s.answer(writeIndex))
	s.http = http.Server{Handler: mux, MaxHeaderBytes: headBytes, ReadHeaderTimeout: headLimit, ReadTimeout: headLimit,
		WriteTimeout: answerLimit, IdleTimeout: idleLimit,
		ErrorLog: log.New(io.Discard, "", 0), // of mistakes of callers, which could fill a log
		ConnContext: func(ctx context.Context, c net.Conn) context.Context {
			return context.WithValue(ctx, callerKey{}, c)
		}}
	s.served.Go(func() { _ = s.http.Serve(s.listener) }) // ends with ErrServerClosed
	return s, nil
}

// Address returns "host:port" with the port that was taken.
func (s *Server) Address() string { return s.listener.Addr().String() }

// Close ends the server: nothing listens, and no function of the source is running or called afterwards.
func (s *Server) Close() {
	ctx, cancel := context.WithTimeout(context.Background(), closeLimit)
	defer cancel()
	if s.http.Shutdown(ctx) != nil {
		_ = s.http.Close() // cuts off those that do not take their answer
	}
	s.mu.Lock()
	s.closed = true
	s.mu.Unlock()
	s.served.Wait()
}

// answer counts an answer under way, so that Close can wait for it.
func (s *Server) answer(write http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if !s.begin() {
			http.Error(w, "the engine is closing", http.StatusServiceUnavailable)
			return
		}
		defer s.served.Done()
		w.Header().Set("X-Content-Type-Options", "nosniff")
		w.Header().Set("Cache-Control", "no-store")
		if caller := r.Context().Value(callerKey{}).(*placed); caller.refused != nil {
			s.source.Refused(caller, caller.refused)
			w.Header().Set("Connection", "close")
			http.Error(w, notAdmitted, http.StatusForbidden)
			return
		}
		write(w, r)
	}
}

// begin counts an answer, unless Close has begun to wait for those before it.
func (s *Server) begin() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.closed {
		s.served.Add(1)
	}
	return !s.closed
}

func writeIndex(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	_, _ = w.Write([]byte("tent: /metrics for Prometheus, /events for the latest events\n"))
}

func (s *Server) writeMetrics(w http.ResponseWriter, _ *http.Request) {
	text, err := s.fresh()
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
	_, _ = w.Write([]byte(text)) // an error is the reader's: it has gone
}

// fresh returns a text that is at most freshFor old.
func (s *Server) fresh() (string, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.made.IsZero() && time.Since(s.made) < freshFor {
		return s.metrics, nil
	}
	text, err := s.source.Metrics()
	if err != nil {
		return "", err
	}
	s.metrics, s.made = text, time.Now()
	return text, nil
}

// writeEvents answers {"now_ns", "next", "lost", "events"}; ?after=N leaves out those before number N.
func (s *Server) writeEvents(w http.ResponseWriter, r *http.Request) {
	after, err := number(r.URL.Query().Get("after"))
	if err != nil {
		http.Error(w, `after is not a number: it is "next" of the answer before`, http.StatusBadRequest)
		return
	}
	text, err := s.events(after)
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_, _ = w.Write(text)
}

func (s *Server) events(after uint64) ([]byte, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	events, next, lost := s.source.Events(after, eventsPerReply)
	return json.Marshal(map[string]any{"now_ns": s.source.Now(), "next": next, "lost": lost, "events": events})
}

func number(text string) (uint64, error) {
	if text == "" {
		return 0, nil
	}
	return strconv.ParseUint(text, 10, 64)
}
