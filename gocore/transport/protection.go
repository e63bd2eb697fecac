package transport

import "fmt"

// Protection keeps the bytes of slices from others on the path between two hosts. A larger one is stricter, and the
// stricter one of two peers counts.
type Protection uint8

// Protections, by the names that the setting security/data takes.
const (
	Auth    Protection = iota // both ends prove themselves, and bytes go as they are
	Sign                      // bytes that somebody changed, repeated or left out are not taken
	Encrypt                   // and nobody reads them
	protectionCount
)

var protectionNames = [protectionCount]string{"auth", "sign", "encrypt"}

// String returns the name in settings.
func (p Protection) String() string {
	if p < protectionCount {
		return protectionNames[p]
	}
	return fmt.Sprintf("protection %d", uint8(p))
}

// Known reports whether this version has the protection.
func (p Protection) Known() bool { return p < protectionCount }

// ParseProtection returns the protection of a name in settings, and reports whether there is one.
func ParseProtection(name string) (p Protection, is bool) {
	for i, known := range protectionNames {
		if name == known {
			return Protection(i), true
		}
	}
	return 0, false
}
