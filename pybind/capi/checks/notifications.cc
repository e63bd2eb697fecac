/* A notification of C++ arrives with all of its bytes, zero bytes among them. */
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
	if (!right) std::fprintf(stderr, "notifications: %s\n", tent_last_error());
	std::printf(right ? "notifications of C++ arrive whole\n" : "wrong\n");
	return right ? 0 : 1;
}
