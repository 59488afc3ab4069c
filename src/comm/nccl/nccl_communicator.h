// Collectives between GPUs, each of another rank, by NCCL.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "comm/communicator.h"
#include "comm/nccl/nccl_session.h"
#include "comm/nccl/nccl_windows.h"
#include "runtime/buffer.h"
#include "runtime/stream.h"

namespace fsdp {

// A collective is one group of NCCL's calls, a call a part; parts of no elements are left out, on
// all ranks alike. Sums are NCCL's, in an order of its own: the same on all ranks, and not rank
// order. It does not average (Capabilities::averages is false), as sums are what NCCL has its
// fastest kernels for. Maxima are gathered and formed by our kernel, in which NaN wins: NCCL's
// would lose it; they are of few elements.
class NcclCommunicator final : public Communicator {
 public:
  // Of two ranks and more.
  enum class Memory : uint8_t { kPlain, kWindows };  // what it allocates
  NcclCommunicator(std::shared_ptr<NcclSession> session, NcclSession::MemberPtr member,
                   std::vector<int> ranks, int rank, Memory memory = Memory::kPlain);
  ~NcclCommunicator() override;

  int rank() const override { return rank_; }
  int size() const override { return static_cast<int>(ranks_.size()); }
  Capabilities capabilities() const override { return {.averages = false, .takes_runs = false}; }
  Buffer allocate(int64_t bytes) override;
  void issue(const Collective& collective, Stream& stream) override;
  std::unique_ptr<Communicator> split(int color, int key) override;
  std::unique_ptr<Communicator> with_windows(bool by_copy_engines) override;
  void abort(std::string_view cause) noexcept override;

 private:
  void meet(const Collective& collective, Stream& stream);
  void maximum(const Collective& collective, Stream& stream);
  // Of this size at least, for what is issued on `stream` until scratch_used_ is recorded.
  std::byte* scratch(int64_t bytes, Stream& stream);

  const std::shared_ptr<NcclSession> session_;
  const NcclSession::MemberPtr member_;
  const std::vector<int> ranks_;  // of the job
  const int rank_;
  const std::optional<NcclWindows> windows_;
  std::shared_ptr<Buffer> scratch_;  // null until it is needed; shared with streams that outgrew it
  Event scratch_used_;
};

// This rank's communicator of `ranks`. Collective over all ranks of the job, of which some may be
// in no group: the first of each group makes its id, which all ranks hear by the control plane.
// Blocks until the group is there and has passed a first collective, so that no later one waits for
// the making of connections.
// Errors: as Communicator; DeviceError.
std::unique_ptr<Communicator> make_nccl_communicator(std::shared_ptr<NcclSession> session,
                                                     std::string_view name,
                                                     const std::vector<int>& ranks);

}  // namespace fsdp
