/* The terms of a C++ Request reach the engine. */
#include <cstdio>
#include <cstring>
#include <vector>

#include "tent/transfer_engine.h"

using namespace mooncake::tent;

static std::vector<unsigned char> mine(4096, 0x5a), theirs(4096);

/* How a WRITE with these terms ends. */
static TransferStatusEnum end_of(TransferEngine &engine, SegmentID target, Request request) {
	request.opcode = Request::OpCode::WRITE;
	request.source = mine.data();
	request.target_id = target;
	request.target_offset = reinterpret_cast<uintptr_t>(theirs.data());
	request.length = mine.size();
	BatchID batch = engine.allocateBatch(1);
	TransferStatus status;
	tent_status_t raw;
	if (engine.submitTransfer(batch, {request}).ok() && tent_wait(engine.handle(), batch, 20000, &raw) == 0 &&
	    !engine.getTransferStatus(batch, status).ok())
		status.s = TransferStatusEnum::INVALID;
	engine.freeBatch(batch);
	return status.s;
}

/* Whether the failure of a call bears the trace of its request, and two traces in one call are refused. */
static bool traced(TransferEngine &engine, SegmentID target) {
	Request request, other;
	request.opcode = Request::OpCode::WRITE;
	request.source = mine.data();
	request.target_id = target;
	request.target_offset = reinterpret_cast<uintptr_t>(theirs.data());
	request.length = mine.size();
	request.deadline_ns = 1; /* it fails */
	other = request;
	request.trace = "req-17";
	char reason[4096] = "";
	BatchID batch = engine.allocateBatch(2);
	bool right = engine.submitTransfer(batch, {other, request}).ok() && tent_wait(engine.handle(), batch, 20000, nullptr) == 0 &&
	             tent_batch_failure(engine.handle(), batch, reason, sizeof reason) == 0 && std::strstr(reason, "req-17");
	engine.freeBatch(batch);
	other.trace = "req-18";
	batch = engine.allocateBatch(2);
	Status refused = engine.submitTransfer(batch, {request, other});
	right = right && !refused.ok() && refused.message().find("different traces") != std::string::npos;
	std::string longer(65, 'x');
	request.trace = longer.c_str();
	right = right && !engine.submitTransfer(batch, {request}).ok() && std::strstr(tent_last_error(), "trace");
	engine.freeBatch(batch);
	return right;
}

int main() {
	tent_set_config("transports/shm/enable", "false");
	TransferEngine owner;
	tent_set_config("transports/shm/enable", "false");
	tent_set_config("allow_faults", "true");
	tent_set_config("faults", "\"corrupt\"");
	tent_set_config("policy", "[{\"name\": \"usual\", \"segment_type\": \"memory\", \"transports\": [\"tcp\"]}]");
	TransferEngine engine;
	SegmentID peer = 0;
	if (!engine.registerLocalMemory(mine.data(), mine.size()).ok() || !owner.registerLocalMemory(theirs.data(), theirs.size()).ok() ||
	    !engine.openSegment(peer, owner.getSegmentName()).ok())
		return std::fprintf(stderr, "terms: %s\n", tent_last_error()), 1;

	Request plain, checked, late, meant, named, unnamed, wrong;
	checked.integrity = INTEGRITY_CRC32C;
	late.deadline_ns = 1;
	meant.intent_type = INTENT_MIGRATION;
	named.policy_name = "usual";
	unnamed.policy_name = "nobody";
	wrong.durability = DURABILITY_DATA; /* no file is written: refused before anything moves */
	bool right = end_of(engine, peer, plain) == TransferStatusEnum::COMPLETED &&
	             end_of(engine, peer, checked) == TransferStatusEnum::FAILED &&
	             end_of(engine, peer, late) == TransferStatusEnum::TIMEOUT &&
	             end_of(engine, peer, meant) == TransferStatusEnum::COMPLETED &&
	             end_of(engine, peer, named) == TransferStatusEnum::COMPLETED &&
	             end_of(engine, peer, unnamed) == TransferStatusEnum::INITIAL &&
	             std::strstr(tent_last_error(), "policy_name") != nullptr &&
	             end_of(engine, peer, wrong) == TransferStatusEnum::INITIAL &&
	             std::strstr(tent_last_error(), "durability") != nullptr && traced(engine, peer);
	std::printf(right ? "every term of C++ arrives\n" : "wrong\n");
	return right ? 0 : 1;
}
