package engine

// hintNames are upstream's TransportType by number, from 64 on tent's own; the names are those of our transports.
var hintNames = [...]string{1: "rdma", 2: "mnnvl", 3: "shm", 4: "nvlink", 5: "gds", 6: "io-uring", 7: "tcp",
	8: "ascend_direct", 9: "sunrise_link", 10: "tpu", 11: "ub", 12: "mpcomm", 64: "buf-io"}

// hintName is the transport that a hint asks for; "" for no hint and for numbers that mean nothing.
func hintName(hint uint8) string {
	if int(hint) < len(hintNames) {
		return hintNames[hint]
	}
	return ""
}
