// An emulated HIXL for tests: the real classes, without an NPU. ../doc.go has its rules and their sources. It is compiled
// with the older string ABI of libstdc++, as CANN is.
//
// A link is one-sided, as over a NIC: a thread of its client carries requests out in turn, and copies between the two
// processes by process_vm_readv and process_vm_writev. The owner's process does nothing, and may stand still. A TCP
// connection carries the owner's registrations when the link comes, and the end of a process. A gate in the owner's
// memory keeps the bytes of a link from moving once the owner has finalised.
#include <netinet/tcp.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <chrono>
#include <cstring>
#include <thread>

#include "../../../../transports/ascend/shim/hixl_abi.h"
#include "fake.h"

#define API __attribute__((visibility("default")))

namespace ge {
API AscendString::AscendString(const char *text) : name_(std::make_shared<std::string>(text ? text : "")) {}
API const char *AscendString::GetString() const { return name_ ? name_->c_str() : ""; }
API bool AscendString::operator<(const AscendString &other) const {
  return std::strcmp(GetString(), other.GetString()) < 0;
}
}  // namespace ge

namespace {
using Clock = std::chrono::steady_clock;
enum : uint32_t {
  SUCCESS = 0, PARAM_INVALID = 103900, TIMEOUT = 103901, NOT_CONNECTED = 103902, ALREADY_CONNECTED = 103903,
  RESOURCE_EXHAUSTED = 203900, FAILED = 503900
};

struct Request {
  hixl::TransferOp op;
  std::vector<hixl::TransferOpDesc> parts;
  std::string peer;
  hixl::TransferStatus state = hixl::TransferStatus::WAITING;
};
}  // namespace

namespace hixl {
class Hixl::HixlImpl {
 public:
  struct Client {
    int fd = -1;
    Hello owner{};
    bool leaving = false, busy = false;
    std::vector<Memory> visible;
    std::deque<uint64_t> queue;
    std::thread thread;
  };
  struct Server {
    int fd;
    Gate *gate;
  };

  std::string name;
  int on = -1, listener = -1;
  bool ended = false;
  std::thread acceptor;
  std::map<uint64_t, Memory> memories;
  std::map<std::string, std::shared_ptr<Client>> clients;
  std::deque<Server> servers;
  std::map<uint64_t, Request> requests;
  uint64_t numbers = 0;

  uint32_t initialize(const std::string &local) {
    name = local;
    on = device();
    if (on < 0) {
      stats.foreign++;
      return FAILED;
    }
    const sockaddr_in a = parsed(local);
    listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    const int yes = 1;
    setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
    if (!a.sin_port || bind(listener, reinterpret_cast<const sockaddr *>(&a), sizeof a) || listen(listener, 64)) {
      close(listener);
      listener = -1;  // there is no acceptor to wait for
      return FAILED;
    }
    prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY);  // peers copy, also where yama lets parents alone
    stats.engines++;
    acceptor = std::thread([this] { accepts(); });
    return SUCCESS;
  }

  void accepts() {
    for (;;) {
      const int fd = accept4(listener, nullptr, nullptr, SOCK_CLOEXEC);
      std::unique_lock<std::mutex> held_lock(lock);
      if (fd < 0 || ended) {
        close(fd);
        return;
      }
      auto *gate = new Gate;
      const Hello hello{static_cast<uint64_t>(getpid()), reinterpret_cast<uint64_t>(gate), memories.size()};
      std::vector<Memory> list;
      for (const auto &m : memories) {
        list.push_back(m.second);
      }
      (void)(put(fd, &hello, sizeof hello) && put(fd, list.data(), list.size() * sizeof(Memory)));
      stats.servers++;
      servers.push_back(Server{fd, gate});
    }
  }

  uint32_t connect(const std::string &peer, int32_t ms) {
    Call call("Connect", on);
    if (call.code) {
      return call.code;
    }
    if (peer == name || !parsed(peer).sin_port) {
      return PARAM_INVALID;
    }
    if (clients.count(peer)) {
      return ALREADY_CONNECTED;
    }
    if (static_cast<long>(clients.size()) >= setting("LINKS", 512)) {
      return RESOURCE_EXHAUSTED;
    }
    stats.connects++;
    const auto until = Clock::now() + std::chrono::milliseconds(ms);
    if (silent) {
      return changed.wait_until(call.held, until, [] { return !silent; }) ? FAILED : TIMEOUT;
    }
    call.held.unlock();
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    const sockaddr_in a = parsed(peer);
    const timeval limit{ms / 1000, ms % 1000 * 1000};
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit);
    auto c = std::make_shared<Client>();
    errno = 0;
    bool met = !::connect(fd, reinterpret_cast<const sockaddr *>(&a), sizeof a) && get(fd, &c->owner, sizeof c->owner);
    if (met) {
      c->visible.resize(c->owner.memories);
      met = get(fd, c->visible.data(), c->visible.size() * sizeof(Memory));
    }
    if (!met) {
      const bool late = errno == EAGAIN || errno == EINPROGRESS;
      close(fd);
      return late ? TIMEOUT : FAILED;
    }
    call.held.lock();
    c->fd = fd;
    clients[peer] = c;
    stats.clients++;
    c->thread = std::thread([this, c] { carries(c.get()); });
    return SUCCESS;
  }

  void carries(Client *c) {
    std::unique_lock<std::mutex> held_lock(lock);
    for (;;) {
      changed.wait(held_lock, [&] { return c->leaving || (!c->queue.empty() && !held && !silent); });
      if (c->leaving) {
        return;
      }
      const uint64_t number = c->queue.front();
      c->queue.pop_front();
      const auto found = requests.find(number);
      if (found == requests.end()) {
        continue;
      }
      const Request r = found->second;
      uint32_t code = SUCCESS;
      try {
        code = injected("transfer");
      } catch (...) {
        code = FAILED;
      }
      c->busy = true;
      held_lock.unlock();
      const bool done = !code && exchange(c, r);
      held_lock.lock();
      c->busy = false;
      const auto again = requests.find(number);
      if (again != requests.end()) {
        again->second.state = done             ? hixl::TransferStatus::COMPLETED
                              : code == TIMEOUT ? hixl::TransferStatus::TIMEOUT
                                                : hixl::TransferStatus::FAILED;
      }
      changed.notify_all();
    }
  }

  // The place of a range in the owner's process, 0 if the link cannot see it.
  uint64_t seen(Client *c, uint64_t at, uint64_t bytes) {
    for (const Memory &m : c->visible) {
      if (m.has(at, bytes)) {
        return m.bytes + (at - m.start);
      }
    }
    std::lock_guard<std::mutex> held_lock(lock);
    stats.invisible++;
    return 0;
  }

  bool exchange(Client *c, const Request &r) {
    const uint64_t word = c->owner.gate + offsetof(Gate, open), busy = c->owner.gate + offsetof(Gate, busy);
    uint64_t open = 0, one = 1, none = 0;
    bool done = copy(c->owner.process, &one, busy, sizeof one, true) &&
                copy(c->owner.process, &open, word, sizeof open, false) && open;
    std::vector<char> room;
    for (const auto &part : r.parts) {
      room.resize(part.len);
      const uint64_t there = seen(c, part.remote_addr, part.len);
      if (r.op == hixl::WRITE) {
        done = done && there && peek(room.data(), part.local_addr, part.len, 0) &&
               copy(c->owner.process, room.data(), there, part.len, true);
      } else {
        done = done && there && copy(c->owner.process, room.data(), there, part.len, false) &&
               peek(room.data(), part.local_addr, part.len, 1);
      }
    }
    (void)copy(c->owner.process, &none, busy, sizeof none, true);
    std::lock_guard<std::mutex> held_lock(lock);
    for (const auto &part : r.parts) {
      stats.moved += done ? static_cast<int64_t>(part.len) : 0;
    }
    return done;
  }

  // Waiting requests are dropped. The one under way ends first, which takes no word of the owner.
  uint32_t disconnect(const std::string &peer) {
    std::unique_lock<std::mutex> held_lock(lock);
    const auto found = clients.find(peer);
    if (found == clients.end()) {
      return NOT_CONNECTED;
    }
    const auto c = found->second;
    c->queue.clear();
    c->leaving = true;
    changed.notify_all();
    changed.wait(held_lock, [&] { return !c->busy; });
    for (auto r = requests.begin(); r != requests.end();) {
      const bool its = r->second.peer == peer;
      stats.requests -= its;
      r = its ? requests.erase(r) : std::next(r);
    }
    clients.erase(peer);
    stats.clients--;
    held_lock.unlock();
    c->thread.join();
    close(c->fd);
    return SUCCESS;
  }

  void finalize() {
    std::unique_lock<std::mutex> held_lock(lock);
    if (listener < 0) {
      return;
    }
    ended = true;
    for (auto &s : servers) {
      s.gate->open = 0;
    }
    std::vector<std::string> peers;
    for (auto &c : clients) {
      peers.push_back(c.first);
    }
    held_lock.unlock();
    shutdown(listener, SHUT_RDWR);
    acceptor.join();
    for (const auto &peer : peers) {
      disconnect(peer);
    }
    for (auto &s : servers) {
      const auto until = Clock::now() + std::chrono::milliseconds(100);  // a client that was killed says no more
      while (s.gate->busy && Clock::now() < until) {
        std::this_thread::yield();
      }
      close(s.fd);
    }
    close(listener);
    held_lock.lock();
    stats.servers -= static_cast<int64_t>(servers.size());
    stats.regions -= static_cast<int64_t>(memories.size());
    listener = -1;
    stats.engines--;
  }

  // Forgets links that peers have ended, and counts the others. The lock is held.
  size_t live_servers() {
    for (auto s = servers.begin(); s != servers.end();) {
      char byte;
      const ssize_t n = recv(s->fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT);
      const bool over = n == 0 || (n < 0 && errno != EAGAIN);
      if (over) {
        close(s->fd);
        stats.servers--;
      }
      s = over ? servers.erase(s) : std::next(s);
    }
    return servers.size();
  }
};

API Hixl::Hixl() : impl_(new HixlImpl) {}
API Hixl::~Hixl() { impl_->finalize(); }
API void Hixl::Finalize() { impl_->finalize(); }

API Status Hixl::Initialize(const AscendString &local, const std::map<AscendString, AscendString> &options) {
  const Call call("Initialize", device());
  if (call.code) {
    return call.code;
  }
  given.clear();
  for (const auto &o : options) {
    given += std::string(o.first.GetString()) + "=" + o.second.GetString() + ";";
  }
  return impl_->initialize(local.GetString());
}

API Status Hixl::RegisterMem(const MemDesc &mem, MemType type, MemHandle &handle) {
  const Call call("RegisterMem", impl_->on);
  if (call.code) {
    return call.code;
  }
  int of = -1;
  const int kind = runtime<int(uint64_t, uint64_t, int *)>("fakeacl_kind")(mem.addr, mem.len, &of);
  if (kind != static_cast<int>(type) || (type == MEM_DEVICE && of != impl_->on)) {
    return PARAM_INVALID;
  }
  for (const auto &m : impl_->memories) {
    if (m.second.start == mem.addr && m.second.size == mem.len) {
      handle = reinterpret_cast<MemHandle>(m.first);
      return SUCCESS;
    }
    if (mem.addr < m.second.start + m.second.size && m.second.start < mem.addr + mem.len) {
      return PARAM_INVALID;
    }
  }
  const uint64_t number = ++impl_->numbers << 4;
  impl_->memories[number] = Memory{mem.addr, mem.len, runtime<uint64_t(uint64_t)>("fakeacl_bytes")(mem.addr)};
  stats.regions++;
  handle = reinterpret_cast<MemHandle>(number);
  return SUCCESS;
}

API Status Hixl::DeregisterMem(MemHandle handle) {
  const Call call("DeregisterMem", impl_->on);
  if (call.code) {
    return call.code;
  }
  if (!impl_->memories.count(reinterpret_cast<uint64_t>(handle))) {
    return SUCCESS;
  }
  if (!impl_->clients.empty() || impl_->live_servers() > 0) {
    stats.held++;
    return FAILED;
  }
  impl_->memories.erase(reinterpret_cast<uint64_t>(handle));
  stats.regions--;
  return SUCCESS;
}

API Status Hixl::Connect(const AscendString &peer, int32_t ms) { return impl_->connect(peer.GetString(), ms); }
API Status Hixl::Disconnect(const AscendString &peer, int32_t) {
  {
    const Call call("Disconnect", impl_->on);
    if (call.code) {
      return call.code;
    }
  }
  return impl_->disconnect(peer.GetString());
}

API Status Hixl::TransferAsync(const AscendString &peer, TransferOp op, const std::vector<TransferOpDesc> &parts,
                               const TransferArgs &, TransferReq &request) {
  const Call call("TransferAsync", impl_->on);
  if (call.code) {
    return call.code;
  }
  const auto found = impl_->clients.find(peer.GetString());
  if (found == impl_->clients.end() || found->second->leaving) {
    return NOT_CONNECTED;
  }
  for (const auto &part : parts) {
    bool here = false;
    for (const auto &m : impl_->memories) {
      here = here || m.second.has(part.local_addr, part.len);
    }
    if (!here || !part.len) {
      return PARAM_INVALID;
    }
  }
  if (static_cast<long>(impl_->requests.size()) >= setting("REQUESTS", 1 << 20)) {
    return RESOURCE_EXHAUSTED;
  }
  const uint64_t number = ++impl_->numbers << 4;
  impl_->requests[number] = Request{op, parts, peer.GetString()};
  found->second->queue.push_back(number);
  stats.transfers++;
  stats.requests++;
  changed.notify_all();
  request = reinterpret_cast<TransferReq>(number);
  return SUCCESS;
}

// A state that ends a request frees it: another question about it is a mistake.
API Status Hixl::GetTransferStatus(const TransferReq &request, TransferStatus &state) {
  const Call call("GetTransferStatus", impl_->on);
  if (call.code) {
    return call.code;
  }
  const auto found = impl_->requests.find(reinterpret_cast<uint64_t>(request));
  if (found == impl_->requests.end()) {
    stats.stale++;
    return PARAM_INVALID;
  }
  state = found->second.state;
  if (state != TransferStatus::WAITING) {
    impl_->requests.erase(found);
    stats.requests--;
  }
  return SUCCESS;
}
}  // namespace hixl

extern "C" {
API void fakehixl_hold(int on) {
  std::lock_guard<std::mutex> held_lock(lock);
  held = on;
  changed.notify_all();
}

// The fabric swallows everything: requests do not end, and nobody connects.
API void fakehixl_silence(int on) {
  std::lock_guard<std::mutex> held_lock(lock);
  silent = on;
  changed.notify_all();
}

API void fakehixl_inject(const char *function, long nth, int code) {
  std::lock_guard<std::mutex> held_lock(lock);
  faults.push_back({function, nth, static_cast<uint32_t>(code)});
}

API void fakehixl_stats(Stats *into) {
  std::lock_guard<std::mutex> held_lock(lock);
  *into = stats;
}

API void fakehixl_options(char *into, uint64_t bytes) {
  std::lock_guard<std::mutex> held_lock(lock);
  std::strncpy(into, given.c_str(), bytes - 1);
}
}
