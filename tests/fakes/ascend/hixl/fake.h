// Below the emulated HIXL: the state of its process, which tests see and change, and the ways into other processes and
// into the emulated runtime.
#pragma once

#include <arpa/inet.h>
#include <dlfcn.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <cstdlib>
#include <deque>
#include <mutex>
#include <stdexcept>
#include <string>

namespace {
// Counters of the process. Those of the first line return to 0.
struct Stats {
  int64_t engines = 0, regions = 0, clients = 0, servers = 0, requests = 0;
  int64_t connects = 0, transfers = 0, moved = 0;
  int64_t stale = 0;       // requests that were asked about after their end
  int64_t held = 0;        // registrations that were to end while links were there
  int64_t foreign = 0;     // calls of threads with the context of no device, or of another one
  int64_t invisible = 0;   // requests for memory that was registered after their link had come
};

std::mutex lock;  // of everything below
std::condition_variable changed;
Stats stats;
bool held, silent;
struct Fault {
  std::string function;
  long nth;
  uint32_t code;
};
std::deque<Fault> faults;
std::string given;  // the options of the latest engine

template <typename F>
F *runtime(const char *name) {
  static void *library = dlopen(std::getenv("TENT_LIBASCENDCL"), RTLD_NOW);
  return reinterpret_cast<F *>(library ? dlsym(library, name) : nullptr);
}

int device() { return runtime<int()>("fakeacl_current")(); }

bool peek(void *into, uint64_t at, uint64_t bytes, int store) {
  return runtime<int(void *, uint64_t, uint64_t, int)>("fakeacl_peek")(into, at, bytes, store) == 0;
}

long setting(const char *name, long otherwise) {
  const char *text = std::getenv((std::string("TENT_FAKEHIXL_") + name).c_str());
  return text && *text ? std::strtol(text, nullptr, 10) : otherwise;
}

// The code that a test has injected for this call of a function; 1 throws. The lock is held.
uint32_t injected(const char *function) {
  for (auto f = faults.begin(); f != faults.end(); ++f) {
    if (f->function == function && --f->nth == 0) {
      const uint32_t code = f->code;
      faults.erase(f);
      if (code == 1) {
        throw std::runtime_error("an exception of the test");
      }
      return code;
    }
  }
  return 0;
}

// A call of HIXL, which has the lock as long as it lasts. It counts a thread without its device's context.
struct Call {
  std::unique_lock<std::mutex> held{lock};
  const uint32_t code;  // that a test has injected, or 0

  Call(const char *function, int on) : code((stats.foreign += device() != on, injected(function))) {}
};

bool all(int fd, void *data, size_t bytes, bool out) {
  for (auto *at = static_cast<char *>(data); bytes;) {
    const ssize_t n = out ? send(fd, at, bytes, MSG_NOSIGNAL) : recv(fd, at, bytes, 0);
    if (n <= 0) {
      return false;
    }
    at += n;
    bytes -= static_cast<size_t>(n);
  }
  return true;
}
bool put(int fd, const void *data, size_t bytes) { return all(fd, const_cast<void *>(data), bytes, true); }
bool get(int fd, void *data, size_t bytes) { return all(fd, data, bytes, false); }

// A registration, and where the owner's process has its bytes.
struct Memory {
  uint64_t start, size, bytes;

  bool has(uint64_t at, uint64_t n) const { return at >= start && n <= size && at - start <= size - n; }
};

// The owner's word about a link, in its memory; never freed, since clients look at it at any time.
struct Gate {
  std::atomic<uint64_t> open{1}, busy{0};
};

// What a client learns when its link comes.
struct Hello {
  uint64_t process, gate, memories;
};

bool copy(uint64_t process, void *here, uint64_t there, uint64_t bytes, bool out) {
  const iovec near{here, bytes}, far{reinterpret_cast<void *>(there), bytes};
  const auto pid = static_cast<pid_t>(process);
  const ssize_t n = out ? process_vm_writev(pid, &near, 1, &far, 1, 0) : process_vm_readv(pid, &near, 1, &far, 1, 0);
  return n == static_cast<ssize_t>(bytes);
}

sockaddr_in parsed(const std::string &name) {
  sockaddr_in a{};
  a.sin_family = AF_INET;
  const size_t colon = name.rfind(':');
  if (colon != std::string::npos) {
    a.sin_port = htons(static_cast<uint16_t>(std::atoi(name.c_str() + colon + 1)));
    inet_pton(AF_INET, name.substr(0, colon).c_str(), &a.sin_addr);
  }
  return a;
}
}  // namespace
