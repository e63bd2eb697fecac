package hixl

import (
	"fmt"

	"github.com/tent-engine/tent/gocore/errs"
)

// Status is a code that a call of HIXL returned.
type Status uint32

// Codes of HIXL, and one of the shim.
const (
	Success           Status = 0
	Threw             Status = 1
	ParamInvalid      Status = 103900
	TimedOut          Status = 103901
	NotConnected      Status = 103902
	AlreadyConnected  Status = 103903
	NotifyFailed      Status = 103904
	Unsupported       Status = 103905
	ResourceExhausted Status = 203900
	Failed            Status = 503900
)

// meaning is the error of a status: its code, the failure's reach and side, and its name.
type meaning struct {
	code  errs.Code
	scope errs.Scope
	side  errs.Side
	name  string
}

// meanings is the table of statuses. An argument is wrong for one slice; memory that a pair of devices cannot exchange
// takes another transport; the rest is the path's, and ends the rail.
var meanings = map[Status]meaning{
	Threw:             {errs.Internal, errs.ScopeRail, errs.SideLocal, "an exception of HIXL"},
	ParamInvalid:      {errs.InvalidArgument, errs.ScopeSlice, errs.SideLocal, "PARAM_INVALID"},
	TimedOut:          {errs.Lost, errs.ScopeRail, errs.SidePath, "TIMEOUT"},
	NotConnected:      {errs.Lost, errs.ScopeRail, errs.SidePath, "NOT_CONNECTED"},
	AlreadyConnected:  {errs.Lost, errs.ScopeRail, errs.SideLocal, "ALREADY_CONNECTED"},
	NotifyFailed:      {errs.Lost, errs.ScopeRail, errs.SidePath, "NOTIFY_FAILED"},
	Unsupported:       {errs.NotHere, errs.ScopeRail, errs.SideUnknown, "UNSUPPORTED"},
	ResourceExhausted: {errs.Lost, errs.ScopeRail, errs.SideLocal, "RESOURCE_EXHAUSTED"},
	Failed:            {errs.Lost, errs.ScopeRail, errs.SidePath, "FAILED"},
}

func (s Status) meaning() meaning {
	if m, known := meanings[s]; known {
		return m
	}
	return meaning{errs.Lost, errs.ScopeRail, errs.SideUnknown, "a code that this version does not know"}
}

// String returns the name of HIXL's header, and the number.
func (s Status) String() string { return fmt.Sprintf("%s (%d)", s.meaning().name, uint32(s)) }

// Error makes the error of a status that is not Success. An exception's text must come from the same thread.
func (s Status) Error(op, report string) *errs.Error {
	m := s.meaning()
	cause := "HIXL returned " + s.String()
	if report != "" {
		cause += ": " + report
	}
	return errs.New(m.code, op, "%s", cause).WithScope(m.scope, m.side)
}

// State is the state of a request.
type State uint32

// States of a request; all but Waiting end it.
const (
	Waiting State = iota
	Completed
	Late
	Broken
)

// Status returns the code that says the same of a request that has not completed.
func (s State) Status() Status {
	if s == Late {
		return TimedOut
	}
	return Failed
}
