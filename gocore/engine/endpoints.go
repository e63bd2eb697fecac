package engine

import (
	"net"
	"strconv"
	"strings"
	"sync"

	"github.com/tent-engine/tent/gocore/clock"
	"github.com/tent-engine/tent/gocore/config"
	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/event"
	"github.com/tent-engine/tent/gocore/scrape"
	"github.com/tent-engine/tent/gocore/transport"
)

// endpointsMax bounds the places at which one engine serves metrics.
const endpointsMax = 8

// endpoints are the servers of metrics of an engine.
type endpoints struct {
	mu     sync.Mutex
	list   []*scrape.Server
	closed bool
}

// ServeMetrics serves the engine's metrics over HTTP at "host:port", or at a port of loopback, until StopMetrics or
// Close. It returns the address with the port that was taken.
func (e *Engine) ServeMetrics(address string) (string, error) {
	if err := e.usable(); err != nil {
		return "", err
	}
	if !strings.Contains(address, ":") {
		address = net.JoinHostPort("127.0.0.1", address)
	}
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return "", errs.Wrap(errs.InvalidArgument, "metrics", err).WithHint("a place to serve is host:port, or a port")
	}
	if err := e.mayListen("metrics/listen", host); err != nil {
		return "", err
	}
	e.served.mu.Lock()
	defer e.served.mu.Unlock()
	switch {
	case e.served.closed:
		return "", closedError()
	case len(e.served.list) >= endpointsMax:
		return "", errs.New(errs.TooManyRequests, "metrics", "they are served at %d places already", endpointsMax)
	}
	server, err := scrape.Listen(address, scrape.Source{Metrics: e.MetricsText, Events: e.eventRecords,
		Now: func() int64 { return int64(clock.Now()) }, Admit: e.credentials.MayRead,
		Refused: e.refuseScrape})
	if err != nil {
		return "", err
	}
	e.served.list = append(e.served.list, server)
	return server.Address(), nil
}

// refuseScrape counts a caller of the metrics that may not be a peer.
func (e *Engine) refuseScrape(caller net.Conn, cause error) {
	host, _, _ := net.SplitHostPort(caller.RemoteAddr().String())
	e.refusals.count(planeControl, transport.RefusedIdentity, host, cause)
}

// StopMetrics ends the server at an address that ServeMetrics returned; another address is ignored.
func (e *Engine) StopMetrics(address string) {
	e.served.mu.Lock()
	defer e.served.mu.Unlock()
	for i, server := range e.served.list {
		if server.Address() == address {
			server.Close()
			e.served.list = append(e.served.list[:i], e.served.list[i+1:]...)
			return
		}
	}
}

// close ends all servers; none starts afterwards.
func (s *endpoints) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	for _, server := range s.list {
		server.Close()
	}
	s.list = nil
}

// serveConfigured starts the server that the settings ask for. A place that is taken, by another engine of the same
// settings for example, costs the metrics and not the engine.
func (e *Engine) serveConfigured() {
	address := metricsAddress(&e.config.Engine)
	if address == "" {
		return
	}
	bound, err := e.ServeMetrics(address)
	if err != nil {
		e.announce(&event.Event{Kind: event.MetricsOff, Note: address, Err: errs.From("metrics", err)})
		return
	}
	e.log.Info("metrics are served", "url", "http://"+bound+"/metrics")
}

// metricsAddress returns the place in metrics/listen, or in its older spelling, "" for none.
func metricsAddress(c *config.Engine) string {
	if c.MetricsListen == "" && c.MetricsPort > 0 {
		return net.JoinHostPort(c.MetricsHost, strconv.Itoa(c.MetricsPort))
	}
	return c.MetricsListen
}

// eventRecords is the history for viewers in other processes.
func (e *Engine) eventRecords(after uint64, most int) (list any, next, lost uint64) {
	events, next, lost := e.history.since(after, most)
	return event.Records(events), next, lost
}
