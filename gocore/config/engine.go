package config

import "time"

// Engine holds the settings of the engine itself and of the core. Defaults and ranges are upstream's where the tag says
// so.
type Engine struct {
	Name                 string        `key:"name" takes:"short text" help:"Name of the engine, shown to peers and in logs; empty chooses one."`
	MetadataType         string        `key:"metadata_type" takes:"p2p|etcd|redis|http" default:"p2p" from:"upstream" help:"Where names of segments are found; with p2p a name is an address, and no service is needed."`
	MetadataServers      string        `key:"metadata_servers" from:"upstream" help:"The service of metadata_type: host:port or https://host:port of each member of etcd, with commas between them; host:port or a redis:// or rediss:// URL of Redis; the URL of an HTTP metadata server. Unused with p2p."`
	MetadataUser         string        `key:"metadata_user" help:"User of this engine at the metadata service; empty: none, or the default user of Redis."`
	MetadataPasswordFile string        `key:"metadata_password_file" takes:"file" help:"File with the password at the metadata service, mode 0600; empty: none."`
	MetadataCA           string        `key:"metadata_tls_ca" takes:"file" help:"PEM file with the authorities that sign the certificates of the metadata service; empty: the system's. One of metadata_tls_*, an https:// or a rediss:// URL makes the connection TLS."`
	MetadataCertificate  string        `key:"metadata_tls_certificate" takes:"file" help:"PEM file with the certificate by which the metadata service knows this engine."`
	MetadataKey          string        `key:"metadata_tls_key" takes:"file" help:"PEM file with the key of metadata_tls_certificate, mode 0600."`
	MetadataLease        time.Duration `key:"metadata_lease" takes:"2..3600" unit:"s" default:"10" help:"A name ends this long after its engine has died. A living engine renews it three times as often."`
	MetadataTimeout      time.Duration `key:"metadata_timeout" takes:"0.01..60" unit:"s" default:"2" help:"Time for one answer of the metadata service."`
	LocalSegmentName     string        `key:"local_segment_name" from:"upstream" help:"Name under which the metadata service lists this engine; empty: its name. Unused with p2p, where the address is the name."`
	RPCServerHostname    string        `key:"rpc_server_hostname" from:"upstream" help:"Where peers reach this engine: an address, a name, an interface as eth0, or 0.0.0.0 or :: for all. The control plane listens there and on every address in transports/*/addresses. Empty is loopback."`
	RPCAdvertiseHostname string        `key:"rpc_advertise_hostname" help:"Host in Engine.address where peers use another one than rpc_server_hostname says, as behind 0.0.0.0; empty: that of rpc_server_hostname, of a wildcard the one by which the default route leaves."`
	RPCServerPort        int           `key:"rpc_server_port" takes:"port" from:"upstream" help:"Port of the control plane; 0 takes a free one."`
	ClusterKey           string        `key:"security/cluster_key" takes:"file" help:"File with the secret of a cluster, at least 32 random bytes and mode 0600: its holders, and nobody else, are peers, on any address. Empty admits processes of this host and user, on loopback alone."`
	Certificate          string        `key:"security/cert" takes:"file" help:"PEM file with the certificate of this engine, and intermediates behind it: its SPIFFE ID and DNS names are its identities. Makes mode mtls, with key, ca and allow."`
	Key                  string        `key:"security/key" takes:"file" help:"PEM file with the key of security/cert; only its user may read it, and its group where root owns it."`
	Authorities          string        `key:"security/ca" takes:"file" help:"PEM file with the authorities that issue the certificates of peers."`
	Allow                []string      `key:"security/allow" takes:"identities" help:"Identities that are admitted in mode mtls. One * stands for a segment of a path or a label of a name, ** for any number of them; id: and 32 hexadecimal digits are one engine."`
	Reload               time.Duration `key:"security/reload_interval" takes:"0..86400" unit:"s" default:"30" help:"How often the files of mode mtls are looked at; one that was replaced is read again. 0: Engine.reload_security() alone does it."`
	RenewalGrace         time.Duration `key:"security/renewal_grace" takes:"0..86400" unit:"s" default:"60" help:"A peer whose certificate has ended, or whose authority has gone from security/ca, keeps its lanes for this long while it is asked for another certificate. New connections by the old one are refused at once."`
	Audit                string        `key:"security/audit" takes:"file" help:"File that gets a JSON line for each peer that is admitted, refused or disconnected, mode 0600. Engines may share it, and it may be rotated by moving it away."`
	Data                 string        `key:"security/data" takes:"auth|sign|encrypt" default:"auth" help:"Protection of bytes between hosts. auth: both ends of a lane prove themselves, and bytes go as they are. sign: a frame that somebody changed, repeated or left out ends its lane. encrypt: and nobody reads them. The stricter one of two peers counts; transports that cannot do it are not used."`
	DataExcept           []string      `key:"security/data_except" help:"Transports that may carry bytes between hosts as they are, whatever security/data says: on a fabric that nobody else reaches. Both peers name them."`
	LocalUsers           []string      `key:"security/local_users" takes:"users" help:"Users of this host that are admitted beside our own; any is all of them. Without security/cluster_key."`
	MaxConnections       int           `key:"security/limits/connections" takes:"16..65536" default:"1024" help:"Connections of peers to the control plane. When all are taken, the one that was idle longest is closed; its peer connects again at its next call."`
	MaxPeerConnections   int           `key:"security/limits/connections_per_peer" takes:"1..1024" default:"8" help:"The same of one peer, which needs one of them."`
	MaxStrangers         int           `key:"security/limits/strangers" takes:"16..65536" default:"256" help:"Connections that have made no call yet; the oldest is closed for a new one."`
	MaxCalls             int           `key:"security/limits/calls_per_second" takes:"10..1000000" default:"4000" help:"Calls of one peer to the control plane; those beyond it wait, for a second at most. 16 KiB of a description count as one."`
	MaxReception         uint64        `key:"security/limits/reception_bytes" takes:"1MiB..1GiB" unit:"B" default:"32MiB" help:"Bytes of messages that have not arrived whole, of all peers; beyond it the connection with most of them is closed."`
	Insecure             bool          `key:"insecure" default:"false" help:"Admits anybody who reaches the engine, on any address. Instead of the keys of security."`
	LogLevel             string        `key:"log_level" takes:"log level" default:"info" from:"upstream" help:"Least level of log records."`
	MergeRequests        bool          `key:"merge_requests" default:"true" from:"upstream" help:"Neighbouring requests of one submit that agree in everything share slices."`
	MaxFailoverAttempts  int           `key:"max_failover_attempts" takes:"0..1000" default:"3" from:"failover seed" help:"Switches of transport a task may make; 0 means never, 1 exactly one."`
	TransferStallTimeout time.Duration `key:"transfer_stall_timeout" takes:"0.01..86400" unit:"s" default:"30" help:"A transfer without a deadline ends after this long without progress while it is being served."`
	FenceTimeoutHost     time.Duration `key:"fence_timeout_host_ms" takes:"1..60000" unit:"ms" default:"100" help:"After a deadline or cancel, how long a peer on this host may take to confirm before a transfer ends dirty."`
	FenceTimeoutNetwork  time.Duration `key:"fence_timeout_network_ms" takes:"1..60000" unit:"ms" default:"1000" help:"The same for a peer on another host."`
	FenceTimeoutFile     time.Duration `key:"fence_timeout_file_ms" takes:"1..600000" unit:"ms" default:"5000" help:"The same for the kernel and a file: a device that does not answer keeps the memory in use beyond it."`
	TransferSyncTimeout  time.Duration `key:"transfer_sync_timeout" takes:"0.01..86400" unit:"s" default:"600" help:"A transfer with durability ends as TIMEOUT when its files are not on stable storage this long after its last byte."`
	AttemptTimeout       time.Duration `key:"attempt_timeout_ms" takes:"1..3600000" unit:"ms" default:"10000" from:"LNet resiliency seed" help:"An attempt fails after this time without a sign of life from its rail, even if all others are silent too: the request tries its next transport."`
	ResendRounds         int           `key:"resend_rounds" takes:"1..255" default:"8" from:"LNet resiliency seed" help:"Rounds in which a failed slice tries all rails of a transport before its request takes the next one."`
	ResendInterval       time.Duration `key:"resend_interval_ms" takes:"1..60000" unit:"ms" default:"1" from:"LNet resiliency seed" help:"Pause behind the first round; it doubles with each, up to 128 times."`
	RailSuspectAfter     time.Duration `key:"rail_suspect_ms" takes:"1..60000" unit:"ms" default:"5" help:"A rail is suspected when it is silent for this long, and three times longer than expected, while others of its peer are not; its slices then go over others too."`
	RailCondemnAfter     time.Duration `key:"rail_condemn_ms" takes:"1..600000" unit:"ms" default:"1000" help:"A suspected rail that stays silent for this long is given up and made anew."`
	LinkWait             time.Duration `key:"link_wait_ms" takes:"1..600000" unit:"ms" default:"500" help:"Time that a request waits for a transport that has had no connection to its peer yet, before it takes another one; without another one, while the peer answers and no data gets there."`
	PeerOutageTimeout    time.Duration `key:"peer_outage_timeout" takes:"0..86400" unit:"s" default:"0" help:"A transfer to a peer that is silent ends after this long, although nothing proves that the peer has gone; it takes another way before, if it has one. 0: transfer_stall_timeout, which nothing outlasts."`
	RegisterTimeout      time.Duration `key:"register_timeout" takes:"0.01..86400" unit:"s" default:"30" help:"Time for the transports to register a region, and 100 ms more for each GiB of it. One that needs longer is left out of the region, with that reason."`
	RegisterWait         time.Duration `key:"register_wait_ms" takes:"0..3600000" unit:"ms" default:"100" help:"A registration returns after this time when one transport can use the region, while others still pin its pages; these join when they are ready."`
	DefaultPriority      int           `key:"default_priority" takes:"0..2" help:"Class of the calls of Python that name no priority: 0 is HIGH, 1 MEDIUM, 2 LOW. Integer-level requests, Go and C always say theirs."`
	MaxPendingRequests   int           `key:"max_pending_requests" takes:"1..16777216" default:"1048576" help:"Requests that have not ended; a submit beyond it is refused whole."`
	MaxBatches           int           `key:"max_batches" takes:"1..1048576" default:"65536" help:"Batches alive at once."`
	InlineBytes          uint64        `key:"inline_bytes" takes:"0..1GiB" unit:"B" default:"256KiB" help:"Most bytes that a call may move on the caller's own thread before it returns, where the transport can; 0 means never."`
	BusyPoll             time.Duration `key:"busy_poll_us" takes:"0..1000000" unit:"us" default:"0" help:"A caller that waits looks for the end of its transfer for this long before it sleeps, and keeps its processor meanwhile. 0: up to 100 us, while that pays. Without effect on one processor."`
	NotificationQueue    int           `key:"notification_queue" takes:"1..1048576" default:"65536" help:"Notifications waiting to be read; a full queue holds the senders' completions back."`
	NotificationBytes    uint64        `key:"notification_bytes" takes:"1MiB..64GiB" unit:"B" default:"64MiB" help:"Bytes of notifications waiting to be read; one peer may fill an eighth of them."`
	Staging              bool          `key:"staging/enable" default:"true" help:"Memory of a device goes through pools in memory of the host, where no transport carries it to the peer or the file directly."`
	StagingSlots         int           `key:"staging/slots" takes:"2..4096" default:"32" help:"Slots of a pool: as many pieces are copied and on the wire at once. There is a pool for each NUMA node that needs one, from its first use."`
	StagingSlotBytes     uint64        `key:"staging/slot_bytes" takes:"64KiB..1GiB" unit:"B" default:"1MiB" help:"Bytes of a slot, the longest piece of a transfer through memory of the host. Pieces are a 32nd of their request, 256 KiB at least."`
	LegacySelection      bool          `key:"use_legacy_transport_selection" default:"false" from:"upstream" help:"Selection by the fixed order of the build, without policies."`
	AllowFaults          bool          `key:"allow_faults" default:"false" help:"Faults may be injected into this engine's transports and control plane: for tests. TENT_FAULTS sets it too."`
	Faults               string        `key:"faults" help:"Faults from the start, in the language of transports/faulty, as in TENT_FAULTS; needs allow_faults."`
	MetricsListen        string        `key:"metrics/listen" takes:"endpoint" help:"Where metrics are served over HTTP, as host:port; a port alone is on loopback. Empty serves none."`
	MetricsPort          int           `key:"metrics/http_port" takes:"port" default:"0" from:"upstream" help:"Older spelling of the port in metrics/listen; 0 serves none."`
	MetricsHost          string        `key:"metrics/http_host" default:"127.0.0.1" from:"upstream" help:"Older spelling of the host in metrics/listen; it counts beside metrics/http_port."`
	PlugIns              []string      `key:"plugins" takes:"plug-ins" help:"Transports and devices in shared libraries: files, and folders of which each *.so is one, in the order of names. Root or the user of the process owns them, and nobody else may write them. They come before the transports of the build."`
	Policies             []Policy      `key:"policy" takes:"policies" from:"upstream" help:"Rules that choose and order transports and NICs by request; the first match counts."`
}
