package plugin

/*
#include <stdlib.h>
#include <string.h>
#include "port.h"
*/
import "C"

import (
	"context"
	"strings"
	"unsafe"

	"github.com/tent-engine/tent/gocore/config"
	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/transport"
)

// Factory makes the transports of one plug-in; see transport.Factory.
type Factory struct{ library *loaded }

var (
	_ transport.Configured = Factory{}
	_ transport.Surveyor   = Factory{}
)

// Name returns the plug-in's own name; that of its file where it cannot be used.
func (f Factory) Name() string { return f.library.name }

// Check returns why the plug-in cannot be used, or cannot work on this machine.
func (f Factory) Check() error {
	l := f.library
	if l.err != nil {
		return l.err
	}
	var why [textMax]C.char
	if C.tp_check(l.api, &why[0], textMax) == 0 {
		return nil
	}
	reason := textOf(&why[0], textMax)
	if reason == "" {
		reason = "it cannot work here, and gives no reason"
	}
	return errs.New(errs.DeviceNotFound, "plug-in "+l.path, "%s", reason).
		WithScope(errs.ScopeTransport, errs.SideLocal)
}

// Settings returns the zero value of a struct with the keys that the plug-in declares, and those of rails.
func (f Factory) Settings() any {
	if f.library.settings == nil {
		return config.Rail{}
	}
	return f.library.settings
}

// Survey implements transport.Surveyor: the file, and the plug-in's own findings.
func (f Factory) Survey() []string {
	found := []string{"plug-in " + f.library.path}
	if f.library.api == nil || f.library.api.survey == nil {
		return found
	}
	var text [surveyMax]C.char
	C.tp_survey(f.library.api, &text[0], surveyMax)
	for line := range strings.Lines(C.GoStringN(&text[0], C.int(C.strnlen(&text[0], surveyMax)))) {
		if line = errs.Printable(strings.TrimSpace(line), textMax); line != "" {
			found = append(found, line)
		}
	}
	return found
}

// Open opens a transport of the plug-in.
func (f Factory) Open(_ context.Context, settings any, host transport.Host,
	sink transport.Sink) (transport.Transport, error) {
	l := f.library
	if l.err != nil {
		return nil, l.err
	}
	var why [textMax]C.char
	c := C.tp_new(slots, &why[0], textMax)
	if c == nil {
		return nil, errs.New(errs.OutOfMemory, "plug-in "+l.path, "%s", textOf(&why[0], textMax))
	}
	p := newPort(l, c, host, sink)
	if err := p.open(config.DeclaredValues(l.declared, settings)); err != nil {
		C.tp_free(c)
		return nil, err
	}
	p.start()
	return p, nil
}

// open lets the plug-in open its transport, and takes its Info.
func (p *port) open(values []string) error {
	var texts arena
	defer texts.free()
	list := texts.texts(values)
	self := texts.peer(p.host.Self())
	var reached []string
	for _, at := range p.host.Addresses() {
		reached = append(reached, at.String())
	}
	self.addresses = texts.text(strings.Join(reached, " "))
	var e C.tent_error
	if r := C.tp_open(p.api, p.c, self, list, &p.t, &e); r != 0 {
		return p.failed("open", r, &e)
	}
	if p.t == nil {
		return p.senseless("open gave no transport")
	}
	C.tp_bind(p.c, p.api, p.t)
	var info C.tent_info
	info.size = C.uint32_t(unsafe.Sizeof(info))
	C.tp_info(p.api, p.t, &info)
	if err := p.takeInfo(&info); err != nil {
		C.tp_close(p.api, p.t, 1e9, &e)
		return err
	}
	return nil
}
