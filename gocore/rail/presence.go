package rail

// Presence is our knowledge of a peer; it stands above the lives of its rails (Life).
//
//	Present --missed--> Silent --heard--> Present        either --left--> Gone
//
// A silent peer owes answers, and says nothing on any rail. It may be stopped, swapped out or on its way to another
// machine, or its cable is out: nothing proves that it has gone. So its rails stay as they are, nobody is blamed, and
// requests wait. Gone is proved: refused or reset by its host, another incarnation, or its process is known to be dead.
type Presence uint8

// Presences of a peer.
const (
	Present Presence = iota
	Silent
	Gone
)

func (p Presence) String() string { return [...]string{"present", "silent", "gone"}[p] }

// Sign is something that is learnt about a peer.
type Sign uint8

// Signs.
const (
	Heard  Sign = iota // its process has answered, or taken bytes
	Missed             // it owes an answer, and has said nothing for longer than it may
	Left               // proof of its end
)

func (s Sign) String() string { return [...]string{"heard", "missed", "left"}[s] }

// Observe notes a sign and reports whether it has changed the presence.
func (p *Presence) Observe(s Sign) (changed bool) {
	before := *p
	switch {
	case before == Gone:
	case s == Left:
		*p = Gone
	case s == Missed:
		*p = Silent
	default:
		*p = Present
	}
	return *p != before
}
