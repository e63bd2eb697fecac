/* A notification of C++ arrives with all of its bytes, zero bytes among them, or is refused. */
#include <cstdio>
#include <string>

#include "tent/transfer_engine.h"

using namespace mooncake::tent;

/* Whether the next notification is this one. */
static bool heard(TransferEngine &engine, const Notification &sent) {
	tent_notif_t one;
	if (tent_recv_notif(engine.handle(), 10000, &one) != 1) return false;
	bool same = std::string(one.name, one.name_bytes) == sent.name &&
	            std::string(one.message, one.message_bytes) == sent.msg;
	tent_free_notif(&one);
	return same;
}

/* A batch with all of its bytes waits for its notification alone, for which the peer has no room: it ends as a whole. */
static bool canceledAsAWhole() {
	tent_set_config("notification_queue", "1");
	TransferEngine full;
	TransferEngine engine;
	SegmentID target = 0;
	Notification sent;
	sent.name = "n";
	void *here = nullptr, *there = nullptr;
	if (!engine.openSegment(target, full.getSegmentName()).ok() || !engine.sendNotification(target, sent).ok() ||
	    !engine.allocateLocalMemory(&here, 4096).ok() || !full.allocateLocalMemory(&there, 4096).ok())
		return false;
	Request request;
	request.opcode = Request::OpCode::WRITE;
	request.source = here;
	request.target_id = target;
	request.target_offset = reinterpret_cast<uintptr_t>(there);
	request.length = 4096;
	BatchID batch = engine.allocateBatch(1);
	tent_status_t task = {};
	tent_status_t whole = {};
	if (!engine.submitTransfer(batch, {request}, sent).ok()) return false;
	while (task.status != STATUS_COMPLETED)
		if (tent_task_status(engine.handle(), batch, 0, &task) != 0 || task.status > STATUS_COMPLETED) return false;
	if (!engine.cancelTransfer(batch, 0).ok() || tent_overall_status(engine.handle(), batch, &whole) != 0 ||
	    whole.status != STATUS_PENDING)
		return false; /* the task has ended, and the batch has not */
	return engine.cancelBatch(batch).ok() && tent_wait(engine.handle(), batch, 10000, &whole) == 0 &&
	       whole.status == STATUS_CANCELED && engine.freeBatch(batch).ok();
}

int main() {
	TransferEngine engine, peer;
	SegmentID target = 0;
	if (!engine.openSegment(target, peer.getSegmentName()).ok())
		return std::fprintf(stderr, "notifications: %s\n", tent_last_error()), 1;

	bool right = true;
	for (const std::string &text : {std::string(), std::string("plain"), std::string("a\0bc", 4), std::string(3, '\0')}) {
		Notification sent;
		sent.name = text;
		sent.msg = text;
		right = right && engine.sendNotification(target, sent).ok() && heard(peer, sent);
	}
	void *memory = nullptr;
	right = right && engine.allocateLocalMemory(&memory, 4096).ok();
	BatchID batch = engine.allocateBatch(1);
	Request request;
	request.opcode = Request::OpCode::WRITE;
	request.source = memory;
	request.target_offset = reinterpret_cast<uintptr_t>(memory);
	request.length = 4096;
	Notification sent;
	sent.name = std::string("a\0b", 3); /* submitTransfer takes no such name */
	sent.msg = std::string("\0c", 2);
	Status cut = engine.submitTransfer(batch, {request}, sent);
	right = right && !cut.ok() && cut.message().find("INVALID_ARGUMENT") == 0;
	sent.name = "whole";
	right = right && engine.submitTransfer(batch, {request}, sent).ok() && heard(engine, sent);
	right = right && tent_wait(engine.handle(), batch, 10000, nullptr) == 0 && engine.freeBatch(batch).ok();

	right = right && canceledAsAWhole();

	if (!right) std::fprintf(stderr, "notifications: %s\n", tent_last_error());
	std::printf(right ? "notifications of C++ arrive whole\n" : "wrong\n");
	return right ? 0 : 1;
}
