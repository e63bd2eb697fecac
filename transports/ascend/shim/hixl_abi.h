// The part of HIXL that tent calls, in declarations of our own: no header of the vendor is needed. Names and sizes are
// those of CANN 8.5 to 9.1. Symbols are the same with both string ABIs of libstdc++, for no std::string crosses them.
//
// -DTENT_USE_CANN_HEADERS takes the vendor's own header instead.
#ifndef TENT_HIXL_ABI_H
#define TENT_HIXL_ABI_H

#ifdef TENT_USE_CANN_HEADERS
#include "hixl/hixl.h"
#else

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

namespace ge {
class AscendString {
 public:
  AscendString() = default;
  ~AscendString() = default;
  AscendString(const char *text);
  const char *GetString() const;
  bool operator<(const AscendString &other) const;

 private:
  std::shared_ptr<std::string> name_;
};
}  // namespace ge

namespace hixl {
using Status = uint32_t;
using AscendString = ge::AscendString;
using MemHandle = void *;
using TransferReq = void *;

enum MemType { MEM_DEVICE, MEM_HOST };
enum TransferOp { READ, WRITE };
enum class TransferStatus { WAITING, COMPLETED, TIMEOUT, FAILED };

struct MemDesc {
  uintptr_t addr;
  size_t len;
  uint8_t reserved[128] = {};
};

struct TransferOpDesc {
  uintptr_t local_addr;
  uintptr_t remote_addr;
  size_t len;
};

struct TransferArgs {
  const void *user_data = nullptr;
  uint8_t reserved[120] = {};
};

class Hixl {
 public:
  Hixl();
  ~Hixl();
  Status Initialize(const AscendString &local_engine, const std::map<AscendString, AscendString> &options);
  void Finalize();
  Status RegisterMem(const MemDesc &mem, MemType type, MemHandle &mem_handle);
  Status DeregisterMem(MemHandle mem_handle);
  Status Connect(const AscendString &remote_engine, int32_t timeout_in_millis = 1000);
  Status Disconnect(const AscendString &remote_engine, int32_t timeout_in_millis = 1000);
  Status TransferAsync(const AscendString &remote_engine, TransferOp operation,
                       const std::vector<TransferOpDesc> &op_descs, const TransferArgs &optional_args,
                       TransferReq &req);
  Status GetTransferStatus(const TransferReq &req, TransferStatus &status);

 private:
  class HixlImpl;
  std::unique_ptr<HixlImpl> impl_;
};
}  // namespace hixl

#endif

static_assert(sizeof(ge::AscendString) == 16, "AscendString");
static_assert(sizeof(hixl::Hixl) == 8, "Hixl");
static_assert(sizeof(hixl::MemDesc) == 144, "MemDesc");
static_assert(sizeof(hixl::TransferArgs) == 128, "TransferArgs");
static_assert(sizeof(hixl::TransferOpDesc) == 24, "TransferOpDesc");

#endif
