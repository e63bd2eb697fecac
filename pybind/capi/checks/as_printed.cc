// The lines of the QoS documentation in C++, exactly as they stand there.
#include <cstdio>
#include <cstring>

// clang-format off
// In C++
#include "tent/transfer_engine.h"

using namespace mooncake::tent;

static Status submit(TransferEngine &engine, BatchID batch_id, void *buffer, SegmentID segment_id, size_t size) {
// Create request with default priority (HIGH)
Request req;
req.opcode = Request::OpCode::READ;
req.source = buffer;
req.target_id = segment_id;
req.target_offset = 0;
req.length = size;
// req.priority is PRIO_HIGH by default
if (req.priority != PRIO_HIGH) std::puts("the default is not HIGH");

// Or specify priority explicitly
req.priority = PRIO_MEDIUM;  // or PRIO_HIGH, PRIO_LOW

req.target_offset = reinterpret_cast<uintptr_t>(buffer) + size; // the documentation's is that of a region

// Submit the request
return
engine.submitTransfer(batch_id, {req});
}
// clang-format on

int main() {
	const size_t size = 4096;
	TransferEngine engine;
	void *memory = nullptr;
	if (!engine.available() || !engine.allocateLocalMemory(&memory, 2 * size).ok()) return std::puts(tent_last_error()), 1;
	char *bytes = static_cast<char *>(memory);
	std::memset(bytes + size, 0x5a, size);
	BatchID batch = engine.allocateBatch(1);
	Status submitted = submit(engine, batch, memory, LOCAL_SEGMENT_ID, size);
	TransferStatus status;
	do {
		if (!submitted.ok() || !engine.getTransferStatus(batch, status).ok()) return std::puts(tent_last_error()), 1;
	} while (status.s == TransferStatusEnum::PENDING);
	bool right = status.s == TransferStatusEnum::COMPLETED && std::memcmp(bytes, bytes + size, size) == 0;
	std::puts(right ? "as printed" : "wrong");
	return right ? 0 : 1;
}
