// Requests of three classes from C++, between two engines of this process.
//
//   c++ -std=c++17 priority.cc $(pkg-config --cflags --libs tent) -o priority && ./priority
#include <cstdio>
#include <cstdlib>
#include <numeric>
#include <string>
#include <vector>

#include "tent/transfer_engine.h"

using namespace mooncake::tent;

static void must(const Status &status, const char *what) {
	if (status.ok()) return;
	std::fprintf(stderr, "priority: %s: %s\n", what, status.ToString().c_str());
	std::exit(1);
}

int main() {
	TransferEngine owner, engine;
	if (!owner.available() || !engine.available()) return std::fprintf(stderr, "priority: %s\n", tent_last_error()), 1;
	std::vector<unsigned char> theirs(3 << 16), mine(3 << 16);
	std::iota(theirs.begin(), theirs.end(), 7);
	must(owner.registerLocalMemory(theirs.data(), theirs.size()), "registerLocalMemory");
	must(engine.registerLocalMemory(mine.data(), mine.size()), "registerLocalMemory");
	SegmentID segment_id = 0;
	must(engine.openSegment(segment_id, owner.getSegmentName()), "openSegment");

	BatchID batch_id = engine.allocateBatch(3);
	std::vector<Request> list;
	for (int priority : {PRIO_HIGH, PRIO_MEDIUM, PRIO_LOW}) {
		Request req;
		req.opcode = Request::OpCode::READ;
		req.source = mine.data() + (priority << 16);
		req.target_id = segment_id;
		req.target_offset = reinterpret_cast<uintptr_t>(theirs.data()) + (priority << 16);
		req.length = 1 << 16;
		req.priority = priority;
		list.push_back(req);
	}
	must(engine.submitTransfer(batch_id, list, {"classes", "three of them"}), "submitTransfer");
	TransferStatus status;
	do must(engine.progressBatch(batch_id, status), "progressBatch");
	while (status.s == TransferStatusEnum::PENDING);
	std::vector<TransferStatus> each;
	must(engine.getTransferStatus(batch_id, each), "getTransferStatus");
	std::vector<Notification> notes;
	must(owner.receiveNotification(notes), "receiveNotification");
	bool right = status.s == TransferStatusEnum::COMPLETED && status.transferred_bytes == mine.size() && each.size() == 3 &&
	             mine == theirs && notes.size() == 1 && notes[0].msg == "three of them";
	must(engine.freeBatch(batch_id), "freeBatch");
	must(engine.closeSegment(segment_id), "closeSegment");
	must(owner.unregisterLocalMemory(theirs.data()), "unregisterLocalMemory");

	Status refused = engine.openSegment(segment_id, "127.0.0.1:1");
	if (refused.ok() || refused.message().empty() || engine.freeBatch(batch_id).ok()) right = false;
	std::printf(right ? "three classes, every byte right\n" : "wrong\n");
	return right ? 0 : 1;
}
