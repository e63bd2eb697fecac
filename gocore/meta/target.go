package meta

import (
	"net"
	"net/netip"
	"path"
	"strconv"
	"strings"

	"github.com/tent-engine/tent/gocore/errs"
)

// Target is a parsed segment name. Exactly one of Address and File is set; both are empty for the own process.
type Target struct {
	Address string // "host:port" of the control plane, the host as it was written
	Region  string // one region of that peer; "" is its whole address space
	File    string // absolute path of a file segment
	ID      string // of the engine, where a store knows it: another one at the address is not meant
}

// Local reports whether the target is the own process.
func (t Target) Local() bool { return t.Address == "" && t.File == "" }

// String returns the name that ParseTarget would turn into t.
func (t Target) String() string {
	switch {
	case t.File != "":
		return fileScheme + t.File
	case t.Region != "":
		return t.Address + "/" + t.Region
	}
	return t.Address
}

const (
	fileScheme = "file://"
	example    = `a segment is named "host:port", "host:port/region" or "file:///path", for example ` +
		`"127.0.0.1:41233/kv" or "[::1]:41233"`
	nameMax       = 4096 // bytes of a whole name; the longest path Linux takes
	hostMax       = 253  // bytes, RFC 1035
	regionNameMax = 255
)

// ParseTarget reads the name of a segment. "" is the own process, "host:port" a peer's whole address space,
// "host:port/region" one of its regions (the region's name may itself contain slashes), "file:///path" a file. A path
// is taken as it stands, without percent-decoding. ParseTarget does no I/O; a mistake is an InvalidArgument error that
// names it and shows an example.
func ParseTarget(text string) (Target, error) {
	switch {
	case text == "":
		return Target{}, nil
	case len(text) > nameMax:
		return Target{}, invalid("the name has %d bytes, more than %d", len(text), nameMax)
	case strings.HasPrefix(text, fileScheme):
		return parseFile(text)
	case strings.HasPrefix(text, "file:"):
		return Target{}, noPath(text)
	}
	if scheme, _, found := strings.Cut(text, "://"); found {
		return Target{}, invalid("%q begins with %q, which is not a scheme tent knows", text, scheme+"://")
	}
	address, region, named := strings.Cut(text, "/")
	if err := CheckAddress(address); err != nil {
		return Target{}, err
	}
	switch {
	case named && region == "":
		return Target{}, invalid("%q ends with a slash but names no region", text)
	case len(region) > regionNameMax:
		return Target{}, invalid("the region's name has %d bytes, more than %d", len(region), regionNameMax)
	}
	return Target{Address: address, Region: region}, nil
}

func parseFile(text string) (Target, error) {
	name := strings.TrimPrefix(text, fileScheme)
	switch {
	case !strings.HasPrefix(name, "/"):
		return Target{}, noPath(text)
	case strings.IndexByte(name, 0) >= 0:
		return Target{}, invalid("%q holds a zero byte", text)
	case path.Clean(name) == "/":
		return Target{}, invalid("%q is a directory", text)
	}
	return Target{File: name}, nil
}

func noPath(text string) error {
	return invalid("%q has no absolute path: three slashes follow \"file:\"", text)
}

// CheckAddress checks "host:port" of a peer without resolving it. The host is a name, an IPv4 address or an IPv6
// address in brackets, the port is from 1 to 65535. The error is InvalidArgument.
func CheckAddress(address string) error {
	if address == "" {
		return invalid("the address is empty")
	}
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		return explainSplit(address)
	}
	bracketed := strings.HasPrefix(address, "[")
	switch {
	case host == "":
		return invalid("%q has no host", address)
	case len(host) > hostMax:
		return invalid("the host has %d bytes, more than %d", len(host), hostMax)
	case bracketed && !isIPv6(host):
		return invalid("%q in brackets is not an IPv6 address", host)
	case !bracketed && !isHost(host):
		return invalid("%q is neither a host name nor an IP address", host)
	}
	if n, err := strconv.ParseUint(port, 10, 16); err != nil || n == 0 || port[0] == '+' {
		return invalid("%q is not a port from 1 to 65535 in %q", port, address)
	}
	return nil
}

func explainSplit(address string) error {
	if _, err := netip.ParseAddr(address); err == nil && strings.Contains(address, ":") {
		return invalid("%q is an IPv6 address without a port: it is written [%s]:port", address, address)
	}
	if strings.Count(address, ":") > 1 && !strings.HasPrefix(address, "[") {
		return invalid("%q has several colons: an IPv6 address is written in brackets", address)
	}
	if !strings.Contains(address, ":") || strings.HasSuffix(address, "]") {
		return invalid("%q has no port", address)
	}
	return invalid("%q is not an address", address)
}

func isIPv6(host string) bool {
	addr, err := netip.ParseAddr(host)
	return err == nil && addr.Is6()
}

// isHost accepts any name that a resolver could know. Underscores are not in the RFC, but container networks use them.
func isHost(host string) bool {
	for _, c := range host {
		switch {
		case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9', c == '-', c == '.', c == '_':
		default:
			return false
		}
	}
	return host[0] != '.' && host[0] != '-'
}

// IsLoopback reports whether the host of "host:port" can only mean the machine that uses it: 127.0.0.0/8, ::1 or
// localhost.
func IsLoopback(address string) bool {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		host = address
	}
	if addr, err := netip.ParseAddr(host); err == nil {
		return addr.Unmap().IsLoopback()
	}
	host = strings.TrimSuffix(strings.ToLower(host), ".")
	return host == "localhost" || strings.HasSuffix(host, ".localhost")
}

func invalid(format string, args ...any) error {
	return errs.New(errs.InvalidArgument, "open", format, args...).WithScope(errs.ScopeSlice,
		errs.SideLocal).WithHint(example)
}
