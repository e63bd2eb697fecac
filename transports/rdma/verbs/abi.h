/* The part of libibverbs' binary interface that tent uses, declared in our own words: a build needs no rdma headers.
 * The interface is frozen (version IBVERBS_1.1 of the library). A test compares every size and offset here with
 * <infiniband/verbs.h> where that is installed. Fields that tent does not use are blank space of their size. */
#ifndef TENT_VERBS_ABI_H
#define TENT_VERBS_ABI_H

#include <stddef.h>
#include <stdint.h>

enum { TV_QPS_RESET, TV_QPS_INIT, TV_QPS_RTR, TV_QPS_RTS, TV_QPS_SQD, TV_QPS_SQE, TV_QPS_ERR };
enum { TV_QPT_RC = 2 };
enum { TV_WR_RDMA_WRITE = 0, TV_WR_RDMA_READ = 4 };
enum { TV_SEND_SIGNALED = 2, TV_SEND_INLINE = 8 };
enum { TV_ACCESS_LOCAL_WRITE = 1, TV_ACCESS_REMOTE_WRITE = 2, TV_ACCESS_REMOTE_READ = 4,
       TV_ACCESS_RELAXED_ORDERING = 1 << 20 };
enum { TV_WC_SUCCESS, TV_WC_LOC_LEN_ERR, TV_WC_LOC_QP_OP_ERR, TV_WC_LOC_EEC_OP_ERR, TV_WC_LOC_PROT_ERR,
       TV_WC_WR_FLUSH_ERR, TV_WC_MW_BIND_ERR, TV_WC_BAD_RESP_ERR, TV_WC_LOC_ACCESS_ERR, TV_WC_REM_INV_REQ_ERR,
       TV_WC_REM_ACCESS_ERR, TV_WC_REM_OP_ERR, TV_WC_RETRY_EXC_ERR, TV_WC_RNR_RETRY_EXC_ERR,
       TV_WC_LOC_RDD_VIOL_ERR, TV_WC_REM_INV_RD_REQ_ERR, TV_WC_REM_ABORT_ERR, TV_WC_INV_EECN_ERR,
       TV_WC_INV_EEC_STATE_ERR, TV_WC_FATAL_ERR, TV_WC_RESP_TIMEOUT_ERR, TV_WC_GENERAL_ERR };
enum { TV_EVENT_CQ_ERR, TV_EVENT_QP_FATAL, TV_EVENT_QP_REQ_ERR, TV_EVENT_QP_ACCESS_ERR, TV_EVENT_COMM_EST,
       TV_EVENT_SQ_DRAINED, TV_EVENT_PATH_MIG, TV_EVENT_PATH_MIG_ERR, TV_EVENT_DEVICE_FATAL, TV_EVENT_PORT_ACTIVE,
       TV_EVENT_PORT_ERR, TV_EVENT_LID_CHANGE, TV_EVENT_PKEY_CHANGE, TV_EVENT_SM_CHANGE, TV_EVENT_SRQ_ERR,
       TV_EVENT_SRQ_LIMIT, TV_EVENT_QP_LAST_WQE, TV_EVENT_CLIENT_REREGISTER, TV_EVENT_GID_CHANGE };
/* The fields that modify_qp takes. */
enum { TV_QP_STATE = 1 << 0, TV_QP_ACCESS_FLAGS = 1 << 3, TV_QP_PKEY_INDEX = 1 << 4, TV_QP_PORT = 1 << 5,
       TV_QP_AV = 1 << 7, TV_QP_PATH_MTU = 1 << 8, TV_QP_TIMEOUT = 1 << 9, TV_QP_RETRY_CNT = 1 << 10,
       TV_QP_RNR_RETRY = 1 << 11, TV_QP_RQ_PSN = 1 << 12, TV_QP_MAX_QP_RD_ATOMIC = 1 << 13,
       TV_QP_MIN_RNR_TIMER = 1 << 15, TV_QP_SQ_PSN = 1 << 16, TV_QP_MAX_DEST_RD_ATOMIC = 1 << 17,
       TV_QP_DEST_QPN = 1 << 20 };
enum { TV_PORT_ACTIVE = 4, TV_LINK_INFINIBAND = 1, TV_LINK_ETHERNET = 2, TV_GID_IB = 0, TV_GID_ROCE_V1 = 1,
       TV_GID_ROCE_V2 = 2 };
enum { TV_PORT_NEEDS_GRH = 1, TV_TRANSPORT_IB = 0 };

struct tv_device; /* it begins as this */
struct tv_device_head { void *ops[2]; uint32_t node, transport; };
struct tv_context;
struct tv_qp;
struct tv_cq;
struct tv_pd;
struct tv_send_wr;
struct tv_completion;

struct tv_ops { /* entries of a context's table; the others are reached by functions of the library */
	void *before_poll[11];
	int (*poll_cq)(struct tv_cq *, int, struct tv_completion *);
	int (*req_notify_cq)(struct tv_cq *, int);
	void *before_post[12];
	int (*post_send)(struct tv_qp *, struct tv_send_wr *, struct tv_send_wr **);
	void *rest[6];
};
struct tv_context {
	struct tv_device *device;
	struct tv_ops ops;
	int cmd_fd, async_fd, num_comp_vectors;
	uint64_t mutex[5];
	void *abi_compat;
};
struct tv_pd { struct tv_context *context; uint32_t handle; };
struct tv_mr { struct tv_context *context; struct tv_pd *pd; void *addr; size_t length; uint32_t handle, lkey, rkey; };
struct tv_channel { struct tv_context *context; int fd, refcnt; };
struct tv_cq { struct tv_context *context; struct tv_channel *channel; void *cq_context; uint32_t handle; int cqe; };
struct tv_qp {
	struct tv_context *context;
	void *qp_context;
	struct tv_pd *pd;
	struct tv_cq *send_cq, *recv_cq;
	void *srq;
	uint32_t handle, qp_num, state, qp_type;
};
struct tv_sge { uint64_t addr; uint32_t length, lkey; };
struct tv_send_wr {
	uint64_t wr_id;
	struct tv_send_wr *next;
	struct tv_sge *sg_list;
	int num_sge;
	uint32_t opcode, send_flags, imm;
	uint64_t remote_addr;
	uint32_t rkey, blank;
	uint64_t rest[9];
};
struct tv_completion {
	uint64_t wr_id;
	uint32_t status, opcode, vendor_err, byte_len, imm, qp_num, src_qp, wc_flags;
	uint16_t pkey_index, slid;
	uint8_t sl, dlid_path_bits;
};
struct tv_cap { uint32_t max_send_wr, max_recv_wr, max_send_sge, max_recv_sge, max_inline_data; };
struct tv_qp_init_attr {
	void *qp_context;
	struct tv_cq *send_cq, *recv_cq;
	void *srq;
	struct tv_cap cap;
	uint32_t qp_type;
	int sq_sig_all;
};
struct tv_ah_attr {
	uint64_t dgid[2];
	uint32_t flow_label;
	uint8_t sgid_index, hop_limit, traffic_class;
	uint16_t dlid;
	uint8_t sl, src_path_bits, static_rate, is_global, port_num;
};
struct tv_qp_attr {
	uint32_t qp_state, cur_qp_state, path_mtu, path_mig_state, qkey, rq_psn, sq_psn, dest_qp_num, qp_access_flags;
	struct tv_cap cap;
	struct tv_ah_attr ah_attr, alt_ah_attr;
	uint16_t pkey_index, alt_pkey_index;
	uint8_t en_sqd, sq_draining, max_rd_atomic, max_dest_rd_atomic, min_rnr_timer, port_num, timeout, retry_cnt,
		rnr_retry, alt_port, alt_timeout;
	uint32_t rate_limit;
};
struct tv_port_attr { /* the library fills the shorter one that it began with, up to flags */
	uint32_t state, max_mtu, active_mtu;
	int gid_tbl_len;
	uint32_t port_cap_flags, max_msg_sz, bad_pkey_cntr, qkey_viol_cntr;
	uint16_t pkey_tbl_len, lid, sm_lid;
	uint8_t lmc, max_vl_num, sm_sl, subnet_timeout, init_type_reply, active_width, active_speed, phys_state,
		link_layer, flags;
	uint16_t port_cap_flags2;
	uint32_t blank;
};
struct tv_device_attr {
	char fw_ver[64];
	uint64_t node_guid, sys_image_guid, max_mr_size, page_size_cap;
	uint32_t vendor_id, vendor_part_id, hw_ver;
	int max_qp, max_qp_wr;
	uint32_t device_cap_flags;
	int max_sge, max_sge_rd, max_cq, max_cqe, max_mr, max_pd, max_qp_rd_atom, max_ee_rd_atom, max_res_rd_atom,
		max_qp_init_rd_atom;
	uint32_t rest[18];
};
struct tv_gid_entry { uint64_t gid[2]; uint32_t gid_index, port_num, gid_type, ndev_ifindex; };
struct tv_async_event {
	union { struct tv_cq *cq; struct tv_qp *qp; int port_num; } element;
	uint32_t event_type;
};

/* Each line is a function of the library: X(result, name, arguments). Those below TV_OPTIONAL may be absent. */
#define TV_FUNCTIONS(X) \
	X(struct tv_device **, ibv_get_device_list, (int *)) \
	X(void, ibv_free_device_list, (struct tv_device **)) \
	X(const char *, ibv_get_device_name, (struct tv_device *)) \
	X(struct tv_context *, ibv_open_device, (struct tv_device *)) \
	X(int, ibv_close_device, (struct tv_context *)) \
	X(int, ibv_query_device, (struct tv_context *, struct tv_device_attr *)) \
	X(int, ibv_query_port, (struct tv_context *, uint8_t, struct tv_port_attr *)) \
	X(ssize_t, _ibv_query_gid_table, (struct tv_context *, struct tv_gid_entry *, size_t, uint32_t, size_t)) \
	X(struct tv_pd *, ibv_alloc_pd, (struct tv_context *)) \
	X(int, ibv_dealloc_pd, (struct tv_pd *)) \
	X(struct tv_mr *, ibv_reg_mr, (struct tv_pd *, void *, size_t, int)) \
	X(struct tv_mr *, ibv_reg_mr_iova, (struct tv_pd *, void *, size_t, uint64_t, int)) \
	X(int, ibv_dereg_mr, (struct tv_mr *)) \
	X(struct tv_channel *, ibv_create_comp_channel, (struct tv_context *)) \
	X(int, ibv_destroy_comp_channel, (struct tv_channel *)) \
	X(struct tv_cq *, ibv_create_cq, (struct tv_context *, int, void *, struct tv_channel *, int)) \
	X(int, ibv_destroy_cq, (struct tv_cq *)) \
	X(int, ibv_get_cq_event, (struct tv_channel *, struct tv_cq **, void **)) \
	X(void, ibv_ack_cq_events, (struct tv_cq *, unsigned int)) \
	X(int, ibv_get_async_event, (struct tv_context *, struct tv_async_event *)) \
	X(void, ibv_ack_async_event, (struct tv_async_event *)) \
	X(struct tv_qp *, ibv_create_qp, (struct tv_pd *, struct tv_qp_init_attr *)) \
	X(int, ibv_destroy_qp, (struct tv_qp *)) \
	X(int, ibv_modify_qp, (struct tv_qp *, struct tv_qp_attr *, int)) \
	X(int, ibv_query_qp, (struct tv_qp *, struct tv_qp_attr *, int, struct tv_qp_init_attr *)) \
	X(int, ibv_fork_init, (void))
#define TV_OPTIONAL(X) \
	X(struct tv_mr *, ibv_reg_mr_iova2, (struct tv_pd *, void *, size_t, uint64_t, unsigned int)) \
	X(struct tv_mr *, ibv_reg_dmabuf_mr, (struct tv_pd *, uint64_t, size_t, uint64_t, int, int))

#endif
