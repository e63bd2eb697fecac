/*
 * A transport of tent as a shared library: a way to move bytes, written in C99, C++11, or whatever calls C.
 *
 * A plug-in exports tent_transport_plugin(), which returns its table of functions. tent loads the files that the
 * setting "plugins" names. The table is the contract of transports call by call; docs/design/transport-in-c.md is the
 * guide, and transports/plugin/example/inside.c a whole transport.
 *
 * Structs that may grow begin with their size. Fields are only ever appended: a reader looks at those that the size
 * covers, and takes the others as 0. A plug-in sets size to sizeof of the struct that it was compiled with.
 *
 * Threads. tent calls every function but open and close from several threads at once. A plug-in calls the functions of
 * tent_host from any thread, also before the call that it is in has returned, and under its own locks. They copy what
 * they are given, never block and never call back. After close they do nothing.
 *
 * Waits. register_region, revoke, deregister, serve and close may take until their limit. Nothing else blocks.
 *
 * Texts end with a 0 byte. Those that tent gives, and arrays, are the caller's and end with the call; slices live until
 * their completion.
 */
#ifndef TENT_TRANSPORT_H
#define TENT_TRANSPORT_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define TENT_TRANSPORT_MAJOR 1 /* another one is refused */
#define TENT_TRANSPORT_MINOR 2 /* grows with each appended field */

#define TENT_DESCRIPTOR_MAX 4096 /* bytes of a descriptor */
#define TENT_PATH_MAX 4096       /* bytes of a path, with the 0 byte at its end */
#define TENT_ANSWER_MAX 65536    /* bytes of an answer of serve */

/* Codes of errors: written by go test ./transports/plugin -rewrite. */
enum {
	TENT_OK = 0,
	TENT_INVALID_ARGUMENT = 1,
	TENT_TOO_MANY_REQUESTS = 2,
	TENT_ADDRESS_NOT_REGISTERED = 3,
	TENT_DEVICE_NOT_FOUND = 4,
	TENT_INVALID_ENTRY = 5,
	TENT_RDMA_ERROR = 100,
	TENT_CUDA_ERROR = 101,
	TENT_METADATA_ERROR = 131,
	TENT_RPC_SERVICE_ERROR = 132,
	TENT_MALFORMED_JSON = 133,
	TENT_INTERNAL_ERROR = 199,
	TENT_NOT_IMPLEMENTED = 200,
	TENT_PERMISSION_DENIED = 300,
	TENT_PEER_UNREACHABLE = 301,
	TENT_PEER_RESTARTED = 302,
	TENT_ENGINE_CLOSED = 303,
	TENT_CANCELED = 304,
	TENT_TIMEOUT = 305,
	TENT_LOST = 306,
	TENT_WITHDRAWN = 307,
	TENT_STALE_GENERATION = 308,
	TENT_NO_ROUTE = 309,
	TENT_OUT_OF_MEMORY = 310,
	TENT_PROTOCOL = 311,
	TENT_STALE_ID = 312,
	TENT_CORRUPTED = 313,
	TENT_NOT_FOUND = 314,
	TENT_NO_SPACE = 315,
	TENT_STORAGE_ERROR = 316,
	TENT_PEER_NOT_ADMITTED = 317,
	TENT_NOT_HERE = 318,
	TENT_REPLACED = 320
};
/* End of codes. */

enum { TENT_SCOPE_SLICE = 0, TENT_SCOPE_RAIL = 1, TENT_SCOPE_LINK = 2, TENT_SCOPE_TRANSPORT = 3 };
enum { TENT_SIDE_UNKNOWN = 0, TENT_SIDE_LOCAL = 1, TENT_SIDE_REMOTE = 2, TENT_SIDE_PATH = 3 };
enum { TENT_READ = 0, TENT_WRITE = 1 };
enum { TENT_CPU = 0, TENT_CUDA = 1, TENT_ROCM = 2, TENT_NPU = 3, TENT_TPU = 4, TENT_FILE = 5, TENT_KINDS = 8 };
enum { TENT_LOCAL_READ_WRITE = 0, TENT_GLOBAL_READ_ONLY = 1, TENT_GLOBAL_READ_WRITE = 2 };
enum { TENT_LOG_DEBUG = 0, TENT_LOG_INFO = 1, TENT_LOG_WARNING = 2, TENT_LOG_ERROR = 3 };

/* Features of tent_info. A bit that tent does not know is refused. */
enum {
	TENT_VECTORS = 1,   /* tent_slice.pieces is understood */
	TENT_CHECKSUMS = 2, /* tent_slice.checked is honoured: a mismatch fails the slice as TENT_CORRUPTED */
	TENT_SAME_HOST = 4, /* only towards peers with our own machine_id */
	TENT_COPIES = 8,    /* poll carries out queued slices, 10 to 50 us each */
	TENT_PINS = 16,     /* register_region takes time that grows with the size */
	/* since 1.1 */
	TENT_FILES = 32,    /* the far ends are files of this machine: open_file, import_file and sync are there */
	TENT_BOUNCES = 64,  /* its bytes of devices cross memory of the host: staging comes first */
	TENT_PROTECTS = 128 /* bytes are signed or encrypted as tent_peer.protects of our own engine demands */
};

/* Reasons of refused. */
enum {
	TENT_REFUSED_IDENTITY = 0,
	TENT_REFUSED_PROOF = 1,
	TENT_REFUSED_ACCESS = 2,
	TENT_REFUSED_HOST = 3,
	TENT_REFUSED_MALFORMED = 4,
	TENT_REFUSED_LIMIT = 5,
	TENT_REFUSED_RATE = 6,
	TENT_REFUSED_SILENCE = 7,
	TENT_REFUSED_VERSION = 8,
	TENT_REFUSED_FORGED = 9
};

/* One opened transport: as tent sees it, for tent_host, and as the plug-in sees it, for tent_transport_api. */
typedef struct tent_port tent_port;
typedef struct tent_transport tent_transport;

/* One path of a link, and the generation in which it is up: never 0, higher each time that it comes up. */
typedef struct {
	uint64_t link; /* number that tent gave to attach; used once */
	uint32_t generation;
	uint16_t index;
	uint16_t reserved;
} tent_rail;

/* The end of something. Functions that fail return the code, too, or any number but 0. */
typedef struct {
	uint32_t size;
	uint16_t code; /* TENT_TIMEOUT and others; never 0 */
	uint8_t scope, side;
	uint8_t collateral; /* failed because a neighbour did */
	uint8_t reserved[7];
	char cause[256]; /* lower case, the cause first */
	char hint[128];  /* the cure, if there is one */
} tent_error;

typedef struct {
	uint32_t size;
	uint16_t version; /* of the transport's protocol that both ends speak; only attach is given it */
	uint8_t self;     /* our own engine */
	uint8_t reserved;
	uint8_t id[16]; /* names the peer, and this incarnation of it; addresses are hints */
	const char *address, *name, *machine_id, *network;
	/* since 1.1 */
	const char *identity;  /* that its credentials prove, "" if nothing does */
	const char *host;      /* that its call came from, "" where we called */
	const char *addresses; /* of our own engine: where peers reach it, a space between two; "" is loopback alone */
	uint64_t protects;     /* of our own engine: 0 for none, 1 to sign, 2 to encrypt bytes between hosts */
} tent_peer;

typedef struct {
	uint32_t size;
	uint8_t kind, permission; /* TENT_CUDA ..., TENT_GLOBAL_READ_ONLY ... */
	uint8_t read_only;        /* not even we may write it */
	uint8_t reserved;
	uint64_t id, address, bytes;
	int32_t fd; /* memfd or file behind it, -1 for none */
	int32_t dmabuf; /* of memory of a device, -1 for none; duplicate it to keep it */
	uint64_t fd_offset, dmabuf_offset;
	uint64_t allocation; /* name of the allocation that it is part of, 0 if unknown */
	uint8_t device_uuid[16];
	const char *location, *pci, *name;
} tent_region;

/* How a file is to be opened. It is never made smaller but by truncate. */
typedef struct {
	uint32_t size;
	uint8_t create, truncate, read_only; /* create: mode 0600, and grown to bytes */
	uint8_t reserved;
	uint64_t bytes; /* 0: as it is */
	const char *path; /* absolute */
} tent_file_spec;

/* A file that was opened. Another one that has got the name since must not be taken for it. */
typedef struct {
	uint32_t size;
	uint32_t read_only;
	uint64_t device, inode; /* of the file system, and there */
	uint64_t bytes;
	char path[TENT_PATH_MAX]; /* absolute, resolved */
} tent_file;

/* Memory that a plug-in brings itself. */
typedef struct {
	uint32_t size;
	int32_t fd; /* in: -1; out: the memfd behind it, -1 for none; still the plug-in's */
	uint64_t fd_offset;
	uint64_t bytes;       /* in: asked for; out: given, never less */
	uint64_t huge_page;   /* bytes of a page of the kernel's pool of huge ones that it is made of; 0: usual pages */
	uint64_t address;     /* out; zeroed */
	const char *location; /* in */
} tent_memory;

/* The rails on which a pair of keys works. All 0: on every one, each as near as its NUMA node. */
typedef struct {
	uint32_t size;
	uint32_t near_count; /* of near and there that are filled in, by index; other rails are as the last one */
	uint64_t rails;      /* a bit each by index, 0: all; the last bit is for index 63 and beyond */
	uint8_t near[64];    /* from the rail to the memory here: 0 nearest, 1 far, 2 farthest */
	uint8_t there[64];   /* from its other end to the peer's memory */
	char why[256];       /* for people: why rails are left out */
} tent_match;

/* A slice of many equal parts: part i lies at local + local_at[i] and at remote + remote_at[i]. */
typedef struct {
	const uint64_t *local_at, *remote_at;
	uint64_t bytes; /* of each part */
	uint64_t count;
} tent_pieces;

/* The unit posted on a rail. It belongs to the plug-in from acceptance to completion; only scratch may be written. */
typedef struct {
	uint32_t size;
	uint8_t op, checked, priority; /* smaller priorities are served first */
	uint8_t reserved;
	uint64_t cookie; /* names the slice in completions and withdraw */
	tent_rail rail;
	uint64_t local_key, remote_key;
	uint64_t local;  /* address of the first byte here */
	uint64_t remote; /* offset of the first byte in the remote region */
	uint64_t length; /* never 0, at most slice_max */
	uint64_t epoch;  /* of the remote region's owner when the slice's task began */
	tent_pieces pieces; /* count 0: one range */
	uint64_t scratch[4]; /* the plug-in's, 0 at first */
} tent_slice;

/* error NULL: every byte is visible at the peer (WRITE) or here (READ), and bytes is the slice's length. */
typedef struct {
	uint64_t cookie;
	uint64_t bytes;
	const tent_error *error;
} tent_completion;

typedef struct {
	uint32_t size;
	int32_t node; /* NUMA node of the local end, -1 if unknown */
	tent_rail rail;
	const char *local, *remote; /* names of the two ends */
	const char *device;         /* local NIC or device by its system's name; NULL: the local end is one */
	double bandwidth;           /* bytes/s, 0 if unknown */
	uint64_t bytes_max;         /* bytes in flight that make sense; 0: tent's choice */
	uint32_t slices_max;        /* slices in flight; 0: tent's choice */
	uint32_t alternate;         /* used when other rails are left over */
} tent_rail_info;

/* Fixed after open. */
typedef struct {
	uint32_t size;
	uint32_t features;
	uint64_t slice_max;  /* bytes in one slice */
	uint64_t slice_best; /* beyond which nothing is gained */
	uint64_t alignment;  /* of addresses, offsets and lengths, a power of two */
	uint32_t slices_max; /* slices outstanding on one rail */
	uint16_t version_first, version_last; /* of the transport's own protocol */
	uint8_t pairs[TENT_KINDS][TENT_KINDS]; /* [local kind][remote kind] */
} tent_info;

/* One setting, transports/<name>/<key>. */
typedef struct {
	const char *key;  /* [a-z][a-z0-9_]* */
	const char *kind; /* "bool", "int", "float" or "text" */
	const char *takes; /* "1..64" for numbers, "slow|fast" for texts, or NULL */
	const char *value; /* the default */
	const char *unit;  /* "B", "s", "ms", "us" or NULL */
	const char *help;  /* one sentence */
} tent_setting;

/* When the other end of a rail gave signs of life, in ns of CLOCK_MONOTONIC; 0 for never. */
typedef struct {
	uint32_t size;
	uint32_t held; /* bytes wait because the peer does not take them */
	uint64_t heard, moved, spoke;
	/* since 1.2; a tent of before gives a smaller size, and has no room for it */
	uint64_t unacked; /* not 0: bytes are on their way that the peer's system has not acknowledged */
} tent_signs;

/* tent's functions. Those with a result return 1. They return 0 when nothing was taken: after close, or while 16384
 * reports wait. */
typedef struct {
	uint32_t size;
	uint16_t major, minor;
	/* Exactly once for each accepted slice, also before submit has returned; afterwards nobody touches its bytes. */
	void (*complete)(tent_port *, const tent_completion *, size_t n);
	int (*ready)(tent_port *, tent_rail);    /* owed after each submit that took less than it was given */
	int (*progress)(tent_port *, tent_rail); /* bytes were acknowledged, and no slice has completed */
	int (*rail_up)(tent_port *, const tent_rail_info *);
	int (*rail_down)(tent_port *, tent_rail, const tent_error *cause); /* NULL: an orderly end */
	int (*link_down)(tent_port *, uint64_t link, const tent_error *cause);
	int (*fenced)(tent_port *, uint64_t link, uint64_t remote_key, uint64_t epoch);
	/* A message of a peer. The answer is a call of noted with this token. */
	int (*notified)(tent_port *, const tent_peer *from, const void *message, size_t n, uint64_t token);
	/* The end of a notify or a probe, once; NULL: it succeeded, after rtt_ns. */
	int (*done)(tent_port *, uint64_t token, uint64_t rtt_ns, const tent_error *);
	/* Sends a message to the same transport of a link's peer. The answer is a call of called with this token. */
	int (*call)(tent_port *, uint64_t link, const void *message, size_t n, uint64_t token, uint32_t timeout_ms);
	int (*describe)(tent_port *, uint64_t local_key, const void *descriptor, size_t n); /* it replaces the older one */
	int (*log)(tent_port *, int level, const char *text);
	/* since 1.1: counts something that was refused to a peer; from is its address, a stranger's without the port */
	int (*refused)(tent_port *, int reason, const char *from, const char *cause);
} tent_host;

/* The plug-in's functions. Each keeps the promise of its namesake in gocore/transport, and those below the line may be
 * NULL. */
typedef struct {
	uint32_t size;
	uint16_t major, minor; /* TENT_TRANSPORT_MAJOR and TENT_TRANSPORT_MINOR */
	const char *name;      /* [a-z][a-z0-9_-]*, at most 32; no other transport's */
	const tent_setting *settings;
	uint64_t settings_count;
	/* 0: it works on this machine; else the reason in words. Cheap, and leaves nothing behind. */
	int (*check)(char *why, size_t bytes);
	/* values are the texts of settings, in their order. host stays valid for ever. */
	int (*open)(tent_port *, const tent_host *host, const tent_peer *self, const char *const *values, tent_transport **,
	            tent_error *);
	void (*info)(tent_transport *, tent_info *);
	/* Gives a key, never 0, and *n bytes of a descriptor of at most TENT_DESCRIPTOR_MAX. */
	int (*register_region)(tent_transport *, const tent_region *, uint64_t limit_ns, uint64_t *key, void *descriptor,
	                       size_t *n, tent_error *);
	/* Returns when no slice of an epoch before this one can touch the bytes; epoch 0 refuses all for good. peer NULL:
	 * all peers. */
	int (*revoke)(tent_transport *, uint64_t key, const tent_peer *peer, uint64_t epoch, uint64_t limit_ns, tent_error *);
	int (*deregister)(tent_transport *, uint64_t key, uint64_t limit_ns, tent_error *);
	int (*attach)(tent_transport *, uint64_t link, const tent_peer *, tent_error *); /* at once; rails come by rail_up */
	int (*import_region)(tent_transport *, uint64_t link, const void *descriptor, size_t n, uint64_t *key, tent_error *);
	void (*forget)(tent_transport *, uint64_t link, uint64_t remote_key);
	void (*detach)(tent_transport *, uint64_t link);
	/* Accepts a prefix, and never blocks. A rail that is not up in just this generation takes nothing, atomically with
	 * fence. */
	size_t (*submit)(tent_transport *, tent_slice *const *, size_t n);
	void (*withdraw)(tent_transport *, const uint64_t *cookies, size_t n); /* those that have completed are ignored */
	void (*fence)(tent_transport *, tent_rail);
	void (*probe)(tent_transport *, tent_rail, uint64_t token); /* ends by done, within a second */
	/* Completes every slice. When it returns 0, no thread, descriptor or mapping of the transport is left. Else slices that
	 * have not completed stay outstanding: tent holds them and their memory until the process ends. */
	int (*close)(tent_transport *, uint64_t limit_ns, tent_error *);
	/* ---- */
	int (*serve)(tent_transport *, const tent_peer *from, const void *message, size_t n, void *answer, size_t *answer_n,
	             tent_error *);
	void (*called)(tent_transport *, uint64_t token, const void *answer, size_t n, const tent_error *);
	/* 0: refused, and done does not come. */
	int (*notify)(tent_transport *, uint64_t link, const void *message, size_t n, uint64_t token);
	void (*noted)(tent_transport *, uint64_t token, int taken); /* taken 0: withhold the acknowledgement */
	int (*heard)(tent_transport *, tent_rail, tent_signs *);    /* 0: the rail is stale */
	size_t (*poll)(tent_transport *, size_t budget);            /* does work on the calling thread, without blocking */
	void (*arm)(tent_transport *);                              /* the plug-in's own threads work again */
	size_t (*explain)(tent_transport *, uint64_t link, char *text, size_t bytes);
	/* ---- since 1.1, each may be NULL */
	/* Carries out all slices, of one rail, before it returns, and keeps none: nothing is completed. 0: some may not
	 * have been, and tent submits all of them: a stale rail, a region that is shut, more urgent ones that wait. */
	int (*carry)(tent_transport *, tent_slice *const *, size_t n);
	/* Of TENT_FILES. open_file checks, makes and grows, and leaves nothing open. attach gets "file://..." then, and
	 * import_file stands for import_region. sync ends by done, once everything that was completed on the file before
	 * is on stable storage. */
	int (*open_file)(tent_transport *, const tent_file_spec *, tent_file *, tent_error *);
	int (*import_file)(tent_transport *, uint64_t link, const tent_file *, uint64_t *key, tent_error *);
	void (*sync)(tent_transport *, uint64_t link, uint64_t remote_key, uint64_t token);
	int (*allocate)(tent_transport *, tent_memory *, tent_error *);
	int (*release)(tent_transport *, uint64_t address, uint64_t bytes, tent_error *);
	/* Other pages, or none, are behind a range of a region from now on. It was fenced. */
	int (*remap)(tent_transport *, uint64_t key, uint64_t offset, uint64_t bytes, uint64_t limit_ns, tent_error *);
	/* Fails with TENT_NOT_HERE where the keys work on no rail. Asked once for each plan. */
	int (*match)(tent_transport *, uint64_t link, uint64_t local_key, uint64_t remote_key, tent_match *, tent_error *);
	void (*disconnect)(tent_transport *, const tent_peer *); /* ends what of the peer reaches us; only its id is known */
	/* 0: a rail to a peer that listens at these addresses may be possible; else the reason in words. Asks nobody. */
	int (*reach)(tent_transport *, const tent_peer *, const char *const *addresses, size_t n, char *why, size_t bytes);
	uint64_t (*flushes)(tent_transport *); /* that were sent because acknowledgements come before bytes are visible */
	size_t (*survey)(char *text, size_t bytes); /* findings on this machine for people, one a line */
} tent_transport_api;

/* Exported by the plug-in as "tent_transport_plugin". NULL: it cannot serve a tent of this version. */
typedef const tent_transport_api *(*tent_transport_plugin_fn)(uint32_t major, uint32_t minor);

#ifdef __cplusplus
}
#endif
#endif
