package verbs

// #include "abi.h"
import "C"

import "fmt"

// Status is the end of a work request.
type Status uint32

// The statuses that are told apart by number elsewhere.
const (
	Success         Status = C.TV_WC_SUCCESS
	LocalProtection Status = C.TV_WC_LOC_PROT_ERR
	Flushed         Status = C.TV_WC_WR_FLUSH_ERR
	RemoteInvalid   Status = C.TV_WC_REM_INV_REQ_ERR
	RemoteAccess    Status = C.TV_WC_REM_ACCESS_ERR
	RemoteOperation Status = C.TV_WC_REM_OP_ERR
	RetriesExceeded Status = C.TV_WC_RETRY_EXC_ERR
	StatusCount     Status = C.TV_WC_GENERAL_ERR + 1
)

var statuses = [StatusCount]string{"success", "local length error", "local queue pair operation error",
	"local EE context operation error", "local protection error", "work request flushed", "memory window bind error",
	"bad response", "local access error", "remote invalid request", "remote access error", "remote operation error",
	"transport retries exceeded", "receiver not ready, retries exceeded", "local RDD violation",
	"remote invalid RD request", "remote aborted", "invalid EE context number", "invalid EE context state",
	"fatal error", "response timeout", "general error"}

func (s Status) String() string {
	if s < StatusCount {
		return statuses[s]
	}
	return fmt.Sprintf("status %d", uint32(s))
}

// Types of Event.
const (
	QueueFailed   uint32 = C.TV_EVENT_CQ_ERR
	PairFatal     uint32 = C.TV_EVENT_QP_FATAL
	PairRequest   uint32 = C.TV_EVENT_QP_REQ_ERR
	PairAccess    uint32 = C.TV_EVENT_QP_ACCESS_ERR
	DeviceFatal   uint32 = C.TV_EVENT_DEVICE_FATAL
	PortActive    uint32 = C.TV_EVENT_PORT_ACTIVE
	PortFailed    uint32 = C.TV_EVENT_PORT_ERR
	LIDChanged    uint32 = C.TV_EVENT_LID_CHANGE
	GIDChanged    uint32 = C.TV_EVENT_GID_CHANGE
	eventsCounted        = C.TV_EVENT_GID_CHANGE + 1
)

var events = [eventsCounted]string{"completion queue failed", "queue pair failed", "queue pair got an invalid request",
	"queue pair got an access that is not allowed", "communication established", "send queue drained", "path migrated",
	"path migration failed", "device failed", "port is up", "port is down", "LID changed", "partition keys changed",
	"subnet manager changed", "shared receive queue failed", "shared receive queue is low", "last request reached",
	"client has to register again", "addresses changed"}

// EventName is the text of an event's type for people.
func EventName(kind uint32) string {
	if kind < eventsCounted {
		return events[kind]
	}
	return fmt.Sprintf("event %d", kind)
}
