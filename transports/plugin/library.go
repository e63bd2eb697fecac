package plugin

/*
#cgo CFLAGS: -std=gnu11 -O2 -Wall -Wextra
#cgo linux LDFLAGS: -ldl
#include <stdlib.h>
#include <string.h>
#include "port.h"
*/
import "C"

import (
	"unsafe"

	"github.com/tent-engine/tent/gocore/config"
	"github.com/tent-engine/tent/gocore/errs"
)

// Bounds of tables of plug-ins, and of the texts in them.
const (
	settingsMax = 256
	textMax     = 1024
	surveyMax   = 16 << 10
)

// loaded is a plug-in's library with the parts that it brings, or the reason why it cannot be used.
type loaded struct {
	path, name string
	err        error
	api        *C.tent_transport_api // a copy of our own; nil: it brings no transport
	declared   []config.Declared
	settings   any       // the zero value of their struct
	devices    *platform // nil: it brings none
}

// open opens a library, and checks its tables.
func open(f found) *loaded {
	path := f.path
	l := &loaded{path: path, name: fallback(path)}
	text := C.CString(f.real)
	defer C.free(unsafe.Pointer(text))
	var why [textMax]C.char
	library := C.tp_dlopen(text, &why[0], textMax)
	if library == nil {
		l.err = refused(path, "%s", textOf(&why[0], textMax))
		return l
	}
	if l.err = l.transport(library); l.err != nil {
		return l
	}
	l.devices, l.err = devicesOf(path, fallback(path), library)
	if l.err == nil && l.api == nil && l.devices == nil {
		l.err = refused(path, "it has neither a function tent_transport_plugin nor tent_register_device_plugin")
	}
	return l
}

// transport takes the transport of a library, if it brings one.
func (l *loaded) transport(library unsafe.Pointer) error {
	var theirs *C.tent_transport_api
	var why [textMax]C.char
	switch C.tp_table(library, &theirs, &why[0], textMax) {
	case 0:
		return nil
	case -1:
		return refused(l.path, "%s", textOf(&why[0], textMax))
	}
	api, err := table(l.path, theirs)
	if err != nil {
		return err
	}
	l.declared = declaredBy(api)
	if l.settings, err = config.Declare(l.declared); err != nil {
		return refused(l.path, "%v", err)
	}
	l.name, l.api = textOf(api.name, textMax), api
	return nil
}

// table copies a plug-in's table and returns why it cannot be used.
func table(path string, theirs *C.tent_transport_api) (*C.tent_transport_api, error) {
	size := C.size_t(theirs.size)
	if size < C.TP_API_LEAST || size > 1<<16 {
		return nil, refused(path, "its table has %d bytes, and version 1.0 has %d", uint64(size), C.TP_API_LEAST).
			WithHint("compile it with the header of this tent, and set size to sizeof")
	}
	if major := uint16(theirs.major); major != C.TENT_TRANSPORT_MAJOR {
		return nil, refused(path, "it is made for version %d.%d of the interface, and this is %d.%d", major,
			uint16(theirs.minor), C.TENT_TRANSPORT_MAJOR, C.TENT_TRANSPORT_MINOR)
	}
	api := C.tp_kept(theirs)
	if api == nil {
		return nil, refused(path, "no memory")
	}
	for _, f := range []struct {
		name string
		is   bool
	}{{"check", api.check != nil}, {"open", api.open != nil}, {"info", api.info != nil},
		{"register_region", api.register_region != nil}, {"revoke", api.revoke != nil},
		{"deregister", api.deregister != nil}, {"attach", api.attach != nil},
		{"import_region", api.import_region != nil}, {"forget", api.forget != nil}, {"detach", api.detach != nil},
		{"submit", api.submit != nil}, {"withdraw", api.withdraw != nil}, {"fence", api.fence != nil},
		{"probe", api.probe != nil}, {"close", api.close != nil}} {
		if !f.is {
			return nil, refused(path, "its table has no function %s", f.name)
		}
	}
	if name := textOf(api.name, textMax); !wellNamed.MatchString(name) {
		return nil, refused(path, "its name %q is not a lower case letter and up to 31 more, digits, - or _", name)
	}
	if api.settings_count > settingsMax || api.settings_count > 0 && api.settings == nil {
		return nil, refused(path, "it declares %d settings, and %d are the limit", uint64(api.settings_count),
			settingsMax)
	}
	return api, nil
}

// declaredBy copies the settings of a table.
func declaredBy(api *C.tent_transport_api) []config.Declared {
	list := make([]config.Declared, int(api.settings_count))
	for i, s := range unsafe.Slice(api.settings, len(list)) {
		list[i] = config.Declared{Key: textOf(s.key, textMax), Kind: textOf(s.kind, textMax),
			Takes: textOf(s.takes, textMax), Default: textOf(s.value, textMax), Unit: textOf(s.unit, textMax),
			Help: textOf(s.help, textMax)}
	}
	return list
}

// textOf copies a text of C, "" for NULL, and replaces bytes that no log should see.
func textOf(text *C.char, most int) string {
	if text == nil {
		return ""
	}
	n := C.strnlen(text, C.size_t(most))
	return errs.Printable(C.GoStringN(text, C.int(n)), most)
}
