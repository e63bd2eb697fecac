// Package vmem asks the kernel about the memory of this process: which ranges are mapped, and how much more there is.
//
// Both are answers of a moment. A range can be unmapped right after it was looked at; a transfer that needs it then
// fails with ADDRESS_NOT_REGISTERED. Free memory can be taken by others before it is touched; that is the OOM killer's
// business, as with any memory that was not touched yet.
package vmem
