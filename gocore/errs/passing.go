package errs

// Passing returns an error of accept(2) as one that passes: a want of descriptors or memory, or an error that waited on
// the connection. The servers of gRPC and of net/http call Accept again after a pause, at most a second. After another
// error they would accept nobody any more.
func Passing(err error) error { return passing{err} }

type passing struct{ error }

// Temporary and Timeout are the words of net.Error, for which those servers ask.
func (passing) Temporary() bool { return true }

// Timeout reports that it is none.
func (passing) Timeout() bool { return false }

// Unwrap returns the error.
func (p passing) Unwrap() error { return p.error }
