/* A child that was forked without exec, before or behind an engine: each call fails with its cause, the end of the process waits for nothing, and
 * the parent's engine goes on. */
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "tent/transfer_engine.h"

using namespace mooncake::tent;

/* A child's search for leaks would wait for the threads of the parent. */
extern "C" const char *__asan_default_options() { return "detect_leaks=0"; }

static int wrong(const char *what) {
	std::fprintf(stderr, "forked: %s: %s\n", what, tent_last_error());
	return 1;
}

static bool said() { return std::strstr(tent_last_error(), "does not survive fork()") != nullptr; }

/* Whether a child that does this and calls exit ends well. One that hangs is killed. */
static bool ends(int (*in_child)()) {
	int status = 0;
	pid_t child = fork();
	if (child == 0) {
		alarm(30);
		std::exit(in_child());
	}
	return waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

static int before_an_engine() { return tent_create_engine() != nullptr || !said() ? wrong("tent_create_engine") : 0; }
static int nothing() { return 0; }

static const bool ended_before = ends(before_an_engine);
static TransferEngine engine; /* as a server has it: its destructor runs in each child */
static tent_batch_id_t batch;
static void *memory;
static char *text;

static int behind_an_engine() {
	tent_status_t status;
	tent_notif_t notification;
	tent_segment_id_t segment;
	char name[256];
	if (engine.available()) return wrong("the engine is available");
	if (tent_create_engine() != nullptr || !said()) return wrong("tent_create_engine");
	if (tent_segment_name(engine.handle(), name, sizeof name) != -1 || !said()) return wrong("tent_segment_name");
	if (engine.openSegment(segment, "127.0.0.1:1").ok() || !said()) return wrong("openSegment");
	if (tent_allocate_batch(engine.handle(), 1) != 0 || !said()) return wrong("tent_allocate_batch");
	if (tent_wait(engine.handle(), batch, 1000, &status) != -1 || !said()) return wrong("tent_wait");
	if (tent_recv_notif(engine.handle(), 1000, &notification) != -1 || !said()) return wrong("tent_recv_notif");
	if (tent_describe(engine.handle(), "metrics") != nullptr || !said()) return wrong("tent_describe");
	if (engine.freeLocalMemory(memory).ok() || !said()) return wrong("freeLocalMemory");
	tent_set_config("log_level", "debug");
	tent_free_text(text);
	return 0;
}

int main() {
	batch = engine.allocateBatch(1);
	text = tent_describe(engine.handle(), "metrics");
	if (!batch || !text || !engine.allocateLocalMemory(&memory, 8192).ok()) return wrong("an engine");
	if (!ended_before || !ends(behind_an_engine) || !ends(nothing)) return wrong("a child did not end well");
	tent_free_text(text);

	Request request;
	request.opcode = Request::OpCode::WRITE;
	request.source = memory;
	request.target_offset = reinterpret_cast<uintptr_t>(memory) + 4096;
	request.length = 4096;
	tent_status_t status;
	if (!engine.submitTransfer(batch, {request}).ok() || tent_wait(engine.handle(), batch, 10000, &status) != 0 ||
	    status.status != STATUS_COMPLETED)
		return wrong("a transfer of the parent");
	std::printf("a forked child is refused, and ends\n");
	return 0;
}
