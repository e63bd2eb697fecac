package file

import "github.com/tent-engine/tent/gocore/transport"

var (
	_ transport.Surveyor = UringFactory{}
	_ transport.Surveyor = BufferedFactory{}
)

// Survey describes how files are moved, see transport.Surveyor.
func (UringFactory) Survey() []string {
	return []string{"the kernel gives rings; files are moved past the page cache where their file system allows it"}
}

// Survey describes how files are moved, see transport.Surveyor.
func (BufferedFactory) Survey() []string {
	return []string{"preadv and pwritev through the page cache, on any file system"}
}
