//go:build cgo

/* Which device's copy engines reach memory of another one. shim.h has the contract. */
#include "shim.h"
#include "inside.h"

tc_result tc_reach(int device, int other) {
	if (!cu.cuDeviceCanAccessPeer)
		return ended(TC_OK, ""); /* copies will tell */
	if (forked())
		return ended(TC_FORKED, "cuDeviceCanAccessPeer");
	int from, to, can = 0;
	tc_result r = CALL(cuDeviceGet, &from, device);
	if (!r.code)
		r = CALL(cuDeviceGet, &to, other);
	if (!r.code)
		r = CALL(cuDeviceCanAccessPeer, &can, from, to);
	return r.code || can ? r : ended(TC_APART, "cuDeviceCanAccessPeer");
}

/* Access once enabled stays, whoever did it: a framework may have been first. */
tc_result tc_join(int device, int other) {
	tc_result r = tc_reach(device, other);
	if (r.code || !cu.cuCtxEnablePeerAccess)
		return r;
	tc_context theirs;
	if ((r = context_of(other, &theirs)).code)
		return r;
	thread_state before;
	if ((r = enter(device, &before)).code)
		return r;
	r = CALL(cuCtxEnablePeerAccess, theirs, 0);
	pop(&before);
	return r.code == TC_PEER_ACCESS_ALREADY_ENABLED ? ended(TC_OK, "") : r;
}
