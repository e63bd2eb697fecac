package verbs_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// layouts are the fields that tent uses: the names of ours, then of the real header's.
var layouts = []struct{ ours, theirs, fields string }{
	{"tv_ops", "ibv_context_ops", "poll_cq req_notify_cq post_send"},
	{"tv_context", "ibv_context", "device ops cmd_fd async_fd num_comp_vectors"},
	{"tv_device_head", "ibv_device", "ops=_ops node=node_type transport=transport_type"},
	{"tv_pd", "ibv_pd", "context handle"},
	{"tv_mr", "ibv_mr", "context pd addr length handle lkey rkey"},
	{"tv_channel", "ibv_comp_channel", "context fd refcnt"},
	{"tv_cq", "ibv_cq", "context channel cq_context handle cqe"},
	{"tv_qp", "ibv_qp", "context qp_context pd send_cq recv_cq srq handle qp_num state qp_type"},
	{"tv_sge", "ibv_sge", "addr length lkey"},
	{"tv_send_wr", "ibv_send_wr", "wr_id next sg_list num_sge opcode send_flags imm=imm_data" +
		" remote_addr=wr.rdma.remote_addr" +
		" rkey=wr.rdma.rkey"},
	{"tv_completion", "ibv_wc", "wr_id status opcode vendor_err byte_len imm=imm_data qp_num" +
		" src_qp wc_flags pkey_index" +
		" slid sl dlid_path_bits"},
	{"tv_qp_init_attr", "ibv_qp_init_attr", "qp_context send_cq recv_cq srq cap qp_type sq_sig_all"},
	{"tv_cap", "ibv_qp_cap", "max_send_wr max_recv_wr max_send_sge max_recv_sge max_inline_data"},
	{"tv_ah_attr", "ibv_ah_attr", "dgid=grh.dgid flow_label=grh.flow_label sgid_index=grh.sgid_index" +
		" hop_limit=grh.hop_limit traffic_class=grh.traffic_class dlid sl src_path_bits static_rate" +
		" is_global port_num"},
	{"tv_qp_attr", "ibv_qp_attr", "qp_state cur_qp_state path_mtu path_mig_state qkey rq_psn" +
		" sq_psn dest_qp_num" +
		" qp_access_flags cap ah_attr alt_ah_attr pkey_index max_rd_atomic max_dest_rd_atomic" +
		" min_rnr_timer port_num" +
		" timeout retry_cnt rnr_retry rate_limit"},
	{"tv_port_attr", "ibv_port_attr", "state max_mtu active_mtu gid_tbl_len port_cap_flags" +
		" max_msg_sz pkey_tbl_len lid" +
		" sm_lid lmc active_width active_speed phys_state link_layer flags"},
	{"tv_device_attr", "ibv_device_attr", "fw_ver node_guid max_mr_size vendor_id hw_ver max_qp" +
		" max_qp_wr max_sge max_cqe" +
		" max_mr max_qp_rd_atom max_qp_init_rd_atom"},
	{"tv_gid_entry", "ibv_gid_entry", "gid gid_index port_num gid_type ndev_ifindex"},
	{"tv_async_event", "ibv_async_event", "element event_type"},
}

// numbers are constants: ours without TV_, and the real name where it is another one.
const numbers = "QPS_RESET QPS_INIT QPS_RTR QPS_RTS QPS_ERR QPT_RC WR_RDMA_WRITE WR_RDMA_READ SEND_SIGNALED" +
	" SEND_INLINE" +
	" ACCESS_LOCAL_WRITE ACCESS_REMOTE_WRITE ACCESS_REMOTE_READ ACCESS_RELAXED_ORDERING" +
	" WC_LOC_PROT_ERR WC_WR_FLUSH_ERR" +
	" WC_REM_ACCESS_ERR WC_RETRY_EXC_ERR WC_RNR_RETRY_EXC_ERR WC_FATAL_ERR WC_GENERAL_ERR" +
	" EVENT_CQ_ERR EVENT_QP_FATAL" +
	" EVENT_DEVICE_FATAL EVENT_PORT_ACTIVE EVENT_PORT_ERR EVENT_LID_CHANGE EVENT_GID_CHANGE" +
	" QP_STATE QP_ACCESS_FLAGS" +
	" QP_PKEY_INDEX QP_PORT QP_AV QP_PATH_MTU QP_TIMEOUT QP_RETRY_CNT QP_RNR_RETRY QP_RQ_PSN" +
	" QP_MAX_QP_RD_ATOMIC" +
	" QP_MIN_RNR_TIMER QP_SQ_PSN QP_MAX_DEST_RD_ATOMIC QP_DEST_QPN PORT_ACTIVE" +
	" LINK_ETHERNET=LINK_LAYER_ETHERNET LINK_INFINIBAND=LINK_LAYER_INFINIBAND" +
	" PORT_NEEDS_GRH=QPF_GRH_REQUIRED TRANSPORT_IB" +
	" GID_IB=GID_TYPE_IB GID_ROCE_V1=GID_TYPE_ROCE_V1 GID_ROCE_V2=GID_TYPE_ROCE_V2"

// TestOurDeclarationsAreTheRealOnes compiles both headers together; each difference is an error with its name.
func TestOurDeclarationsAreTheRealOnes(t *testing.T) {
	if _, err := os.Stat("/usr/include/infiniband/verbs.h"); err != nil {
		t.Skip("the header of libibverbs is not installed: libibverbs-dev")
	}
	var c strings.Builder
	c.WriteString("#include <infiniband/verbs.h>\n#include \"abi.h\"\n")
	same := func(what, ours, theirs string) {
		fmt.Fprintf(&c, "_Static_assert(%s == %s, \"%s\");\n", ours, theirs, what)
	}
	for _, l := range layouts {
		for _, field := range strings.Fields(l.fields) {
			ours, theirs, other := strings.Cut(field, "=")
			if !other {
				theirs = ours
			}
			same(l.ours+"."+ours, fmt.Sprintf("offsetof(struct %s, %s)", l.ours, ours),
				fmt.Sprintf("offsetof(struct %s, %s)", l.theirs, theirs))
			same("size of "+l.ours+"."+ours, fmt.Sprintf("sizeof(((struct %s *)0)->%s)", l.ours, ours),
				fmt.Sprintf("sizeof(((struct %s *)0)->%s)", l.theirs, theirs))
		}
		switch l.ours {
		// made by the library, so a beginning is enough
		case "tv_device_head", "tv_pd", "tv_mr", "tv_channel", "tv_cq", "tv_qp":
		case "tv_device_attr", "tv_port_attr", "tv_context":
			fmt.Fprintf(&c, "_Static_assert(sizeof(struct %s) >= sizeof(struct %s), \"size\");\n", l.ours, l.theirs)
		default:
			same("size of "+l.ours, "sizeof(struct "+l.ours+")", "sizeof(struct "+l.theirs+")")
		}
	}
	for _, name := range strings.Fields(numbers) {
		ours, theirs, other := strings.Cut(name, "=")
		if !other {
			theirs = ours
		}
		same(ours, "(int)TV_"+ours, "(int)IBV_"+theirs)
	}
	path := filepath.Join(t.TempDir(), "abi.c")
	require.NoError(t, os.WriteFile(path, []byte(c.String()), 0o600))
	here, err := os.Getwd()
	require.NoError(t, err)
	out, err := exec.Command("gcc", "-std=gnu11", "-fsyntax-only", "-I"+here, path).CombinedOutput()
	require.NoError(t, err, "%s", out)
}
