/* An owner leases a part of its memory by a token. A peer reaches these bytes in the way that it was given, no others, and
 * none when the lease has ended. */
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "tent/transfer_engine.h"

using namespace mooncake::tent;

static constexpr size_t SIZE = 1 << 16, AT = 4096, PART = 8192;
static unsigned char theirs[SIZE], before[SIZE], mine[SIZE];

static void must(bool ok, const char *what) {
	if (ok) return;
	std::fprintf(stderr, "leases: %s: %s\n", what, tent_last_error());
	std::exit(1);
}

/* One request of the peer on a segment: whether it completed. */
static bool moves(TransferEngine &peer, SegmentID at, Request::OpCode opcode, uint64_t offset, size_t length) {
	BatchID batch = peer.allocateBatch(1);
	must(batch != 0, "allocateBatch");
	Request r;
	r.opcode = opcode, r.source = mine, r.target_id = at, r.target_offset = offset, r.length = length;
	tent_status_t status = {};
	bool completed = peer.submitTransfer(batch, {r}).ok();
	if (completed) {
		must(tent_wait(peer.handle(), batch, 20000, &status) == 0, "tent_wait");
		completed = status.status == STATUS_COMPLETED;
	}
	must(peer.freeBatch(batch).ok(), "freeBatch");
	return completed;
}

int main() {
	TransferEngine owner, peer;
	must(owner.available() && peer.available(), "engines");
	for (size_t i = 0; i < SIZE; i++) theirs[i] = before[i] = static_cast<unsigned char>(i * 131 + i / 4096);
	must(owner.registerLocalMemory(theirs, SIZE, kLocalReadWrite).ok(), "memory that no peer may use");
	must(peer.registerLocalMemory(mine, SIZE).ok(), "registerLocalMemory");
	SegmentID whole, part, named;
	must(peer.openSegment(whole, owner.getSegmentName()).ok(), "openSegment");

	tent_lease_options_t options = {};
	options.permission = PERM_GLOBAL_READ_ONLY, options.name = "part", options.expires_ms = 3600 * 1000;
	tent_lease_t lease = 0, writable = 0;
	std::string token;
	uint64_t size = 0;
	must(owner.shareMemory(theirs + AT, PART, lease, options).ok() && lease != 0, "shareMemory");
	must(owner.leaseToken(lease, token).ok() && !token.empty(), "leaseToken");
	must(peer.openLease(part, whole, token, &size).ok() && size == PART, "openLease");
	must(peer.openSegment(named, owner.getSegmentName() + "/part").ok(), "a lease by its name");
	for (SegmentID each : {part, named}) {
		std::memset(mine, 0, SIZE);
		must(moves(peer, each, Request::OpCode::READ, 1, PART - 1), "a READ of the lease");
		must(std::memcmp(mine, before + AT + 1, PART - 1) == 0 && mine[PART - 1] == 0, "its bytes");
		must(!moves(peer, each, Request::OpCode::READ, 1, PART), "a READ beyond the lease completed");
		must(!moves(peer, each, Request::OpCode::WRITE, 0, 64), "a WRITE of a lease to be read completed");
	}
	must(!moves(peer, whole, Request::OpCode::READ, reinterpret_cast<uintptr_t>(theirs) + AT, 64),
	     "the memory itself was read");
	must(std::memcmp(theirs, before, SIZE) == 0, "the owner's bytes");

	must(owner.shareMemory(theirs + AT, PART, writable).ok(), "shareMemory with all that the memory allows");
	must(owner.leaseToken(writable, token).ok() && peer.openLease(named, whole, token).ok(), "openLease");
	must(moves(peer, named, Request::OpCode::WRITE, 8, 64), "a WRITE of the lease");
	std::memcpy(before + AT + 8, mine, 64);
	must(std::memcmp(theirs, before, SIZE) == 0, "the bytes of the WRITE");

	tent_lease_t beside = 0; /* each of several leases has bytes of its own */
	SegmentID next;
	must(owner.shareMemory(theirs + AT + PART, PART, beside).ok() && owner.leaseToken(beside, token).ok(), "a lease beside it");
	must(peer.openLease(next, whole, token).ok() && moves(peer, next, Request::OpCode::READ, 0, PART), "its READ");
	must(std::memcmp(mine, before + AT + PART, PART) == 0, "the bytes of the second lease");
	must(moves(peer, part, Request::OpCode::READ, 0, PART) && std::memcmp(mine, before + AT, PART) == 0, "those of the first");

	tent_lease_t pages = 0; /* two pages of one, with a page of nobody between them */
	SegmentID both;
	const unsigned char *first = before + 12 * AT, *second = before + 10 * AT;
	must(owner.shareMemory({{theirs + 12 * AT, AT}, {theirs + 10 * AT, AT}}, pages).ok(), "shareMemory of ranges");
	must(owner.leaseToken(pages, token).ok() && peer.openLease(both, whole, token, &size).ok() && size == 2 * AT, "their lease");
	must(moves(peer, both, Request::OpCode::READ, 0, AT) && std::memcmp(mine, first, AT) == 0, "the first page");
	must(moves(peer, both, Request::OpCode::READ, AT, AT) && std::memcmp(mine, second, AT) == 0, "the second page");
	must(!moves(peer, both, Request::OpCode::WRITE, AT - 1, 2), "a WRITE across two pages completed");
	must(std::strstr(tent_last_error(), "two ranges"), "its reason");
	must(!moves(peer, both, Request::OpCode::WRITE, 2 * AT, 1), "a WRITE behind the last page completed");
	must(std::memcmp(theirs, before, SIZE) == 0, "the bytes between the pages");
	must(owner.closeLease(pages).ok() && !moves(peer, both, Request::OpCode::READ, AT, AT), "the end of the second page");
	tent_segment_info_t info;
	must(owner.shareMemory(theirs, 1, pages).ok() && tent_get_segment_info(peer.handle(), whole, &info) == 0, "segment info");
	for (int i = 0; i < info.num_buffers; i++) must(info.buffers[i].base != 0, "a lease among the buffers");
	tent_free_segment_info(&info);
	must(!owner.shareMemory(std::vector<tent_range_t>(), lease).ok(), "a lease of no ranges");
	must(!owner.shareMemory({{theirs, 2}, {theirs + 1, 2}}, pages).ok() && std::strstr(tent_last_error(), "overlap"), "overlap");
	must(!owner.shareMemory({{theirs, 2}, {mine, 2}}, pages).ok(), "memory that is not the owner's");

	must(owner.renewLease(lease, 0).ok() && owner.closeLease(lease).ok() && owner.closeLease(lease).ok(), "closeLease");
	must(!moves(peer, part, Request::OpCode::READ, 0, 64), "a READ behind the end completed");
	must(!owner.renewLease(lease, 1000).ok() && !owner.leaseToken(lease, token).ok(), "a lease that has ended");
	must(moves(peer, named, Request::OpCode::READ, 0, 64), "the end of a lease ended another one");

	must(!owner.shareMemory(theirs + SIZE - 1, 2, lease).ok() && std::strstr(tent_last_error(), "not inside memory"), "range");
	must(!owner.shareMemory(theirs, 0, lease).ok(), "an empty lease");
	must(tent_share_memory(owner.handle(), theirs, 1, nullptr, nullptr) == -1, "lease is NULL");
	must(!peer.openLease(part, whole, "lease1-nonsense").ok() && std::strstr(tent_last_error(), "no token"), "nonsense");
	must(tent_open_lease(peer.handle(), &part, whole, nullptr, nullptr) == -1, "a token that is NULL");
	const tent_lease_t memory = 1ULL << 32; /* the number of the first region of an engine */
	must(!owner.closeLease(memory).ok() && std::strstr(tent_last_error(), "no lease"), "memory was closed as a lease");
	must(owner.unregisterLocalMemory(theirs, SIZE).ok(), "unregisterLocalMemory");
	must(!moves(peer, named, Request::OpCode::READ, 0, 64), "a lease of memory that is gone");
	std::puts("a lease gave its bytes for its time, and no others");
	return 0;
}
