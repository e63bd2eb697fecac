package engine

import "strings"

// sayRoutes logs the transports that may carry bytes to a peer that was opened, in order of preference, and the reason
// against each other one.
func (e *Engine) sayRoutes(p *peer) {
	var routes, without []string
	for i, a := range *p.links.Load() {
		port := e.ports[i]
		switch {
		case a.id != 0:
			routes = append(routes, port.name)
		case p.misfit(&port.info) != "": // it is for files
		case port.transport == nil:
			without = append(without, port.name+": "+port.reason)
		default:
			without = append(without, port.name+": "+a.why)
		}
	}
	e.log.Info("A peer was opened", "peer", p.identity.Address, "routes", strings.Join(routes, ", "),
		"without", strings.Join(without, "; "))
}
