// tent_ascend.h over hixl::Hixl. The symbols of HIXL are found in the libraries that the process has opened before this
// one, libmetadef.so and libcann_hixl.so, so neither a library nor a header of the vendor is needed to compile it:
//
//   g++ -std=c++17 -O2 -fPIC -shared tent_ascend.cc -o libtent_ascend.so
#include "tent_ascend.h"

#include <exception>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "hixl_abi.h"

struct tent_ascend {
  hixl::Hixl hixl;
};

namespace {
thread_local std::string report;

// Carries a call out; an exception becomes a code, and its text the thread's report.
template <typename Call>
uint32_t guarded(Call call) noexcept {
  try {
    report.clear();
    return call();
  } catch (const std::exception &e) {
    try {
      report = e.what();
    } catch (...) {
      report.clear();
    }
  } catch (...) {
    report.clear();
  }
  return TENT_ASCEND_THREW;
}

void *handle(uint64_t number) { return reinterpret_cast<void *>(number); }
}  // namespace

extern "C" {

#define API __attribute__((visibility("default")))

API int tent_ascend_abi(void) { return TENT_ASCEND_ABI; }

API const char *tent_ascend_report(void) { return report.c_str(); }

API uint32_t tent_ascend_create(const char *local, const char *const *options, tent_ascend **engine) {
  *engine = nullptr;
  return guarded([&]() -> uint32_t {
    std::map<hixl::AscendString, hixl::AscendString> map;
    for (; options[0] && options[1]; options += 2) {
      map.emplace(hixl::AscendString(options[0]), hixl::AscendString(options[1]));
    }
    auto made = std::make_unique<tent_ascend>();
    const hixl::Status status = made->hixl.Initialize(hixl::AscendString(local), map);
    if (status == 0) {
      *engine = made.release();
    }
    return status;
  });
}

API void tent_ascend_destroy(tent_ascend *engine) {
  guarded([&]() -> uint32_t {
    engine->hixl.Finalize();
    return 0;
  });
  guarded([&]() -> uint32_t {
    delete engine;
    return 0;
  });
}

API uint32_t tent_ascend_register(tent_ascend *engine, uint64_t address, uint64_t bytes, int host, uint64_t *number) {
  return guarded([&]() -> uint32_t {
    hixl::MemDesc memory{};
    memory.addr = address;
    memory.len = bytes;
    hixl::MemHandle made = nullptr;
    const hixl::Status status = engine->hixl.RegisterMem(memory, host ? hixl::MEM_HOST : hixl::MEM_DEVICE, made);
    *number = reinterpret_cast<uint64_t>(made);
    return status;
  });
}

API uint32_t tent_ascend_deregister(tent_ascend *engine, uint64_t number) {
  return guarded([&]() -> uint32_t { return engine->hixl.DeregisterMem(handle(number)); });
}

API uint32_t tent_ascend_connect(tent_ascend *engine, const char *peer, int32_t milliseconds) {
  return guarded([&]() -> uint32_t { return engine->hixl.Connect(hixl::AscendString(peer), milliseconds); });
}

API uint32_t tent_ascend_disconnect(tent_ascend *engine, const char *peer, int32_t milliseconds) {
  return guarded([&]() -> uint32_t { return engine->hixl.Disconnect(hixl::AscendString(peer), milliseconds); });
}

API uint32_t tent_ascend_transfer(tent_ascend *engine, const char *peer, int write, const tent_ascend_range *ranges,
                                  size_t count, uint64_t *request) {
  return guarded([&]() -> uint32_t {
    thread_local std::vector<hixl::TransferOpDesc> parts;  // one thread posts: nothing is allocated for a request
    parts.clear();
    for (size_t i = 0; i < count; i++) {
      parts.push_back({ranges[i].local, ranges[i].remote, ranges[i].bytes});
    }
    hixl::TransferReq made = nullptr;
    const hixl::Status status = engine->hixl.TransferAsync(
        hixl::AscendString(peer), write ? hixl::WRITE : hixl::READ, parts, hixl::TransferArgs{}, made);
    *request = reinterpret_cast<uint64_t>(made);
    return status;
  });
}

API void tent_ascend_status(tent_ascend *engine, tent_ascend_ask *list, size_t count) {
  for (size_t i = 0; i < count; i++) {
    hixl::TransferStatus state = hixl::TransferStatus::WAITING;
    list[i].code =
        guarded([&]() -> uint32_t { return engine->hixl.GetTransferStatus(handle(list[i].request), state); });
    list[i].state = static_cast<uint32_t>(state);
  }
}

}  // extern "C"
