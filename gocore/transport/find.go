package transport

// Decorator is a transport around another one, for faults or measurements.
type Decorator interface {
	Transport
	Inner() Transport
}

// Selective is a Transport that learns at run time which optional interfaces it has: a plug-in's. It has the methods of
// all of them, and Find leaves out those that it lacks.
type Selective interface {
	// Lacks reports whether it cannot serve an optional interface, which a nil pointer names: (*Notifier)(nil).
	Lacks(optional any) bool
}

// Find returns an optional interface of a transport, none of a nil one. A decorator has those of its inner transport
// and no others: its own implementation of one comes before the inner one's.
func Find[T any](t Transport) (found T, is bool) {
	outermost := true
	for {
		if v, has := t.(T); has && outermost {
			found, outermost = v, false
		}
		d, decorated := t.(Decorator)
		if !decorated {
			s, selective := t.(Selective)
			if _, is = t.(T); !is || selective && s.Lacks((*T)(nil)) {
				var none T
				return none, false
			}
			return found, true
		}
		t = d.Inner()
	}
}

// Outermost returns an interface that a transport, or one of its decorators, has of its own.
func Outermost[T any](t Transport) (found T, is bool) {
	for {
		if found, is = t.(T); is {
			return found, true
		}
		d, decorated := t.(Decorator)
		if !decorated {
			return found, false
		}
		t = d.Inner()
	}
}
