package errs

// Record is an error in JSON: as the binding raises it, and as events carry it to other processes.
type Record struct {
	Code      string `json:"code"`
	Message   string `json:"message"`
	Hint      string `json:"hint"`
	Scope     string `json:"scope"`
	Side      string `json:"side"`
	Transport string `json:"transport"`
	Rail      string `json:"rail"`
	Peer      string `json:"peer"`
}

// Record returns the error for JSON. Internal becomes the code of a limit of the system where that was the cause, since
// such a limit is no defect of tent. Inside it stays Internal: those codes are permanent, and the limit may pass.
func (e *Error) Record() Record {
	code := e.Code
	if code == Internal {
		code, _ = limitOf(e.Err)
	}
	return Record{code.String(), e.Error(), e.Hint, e.Scope.String(), e.Side.String(), e.Transport, e.Rail, e.Peer}
}
