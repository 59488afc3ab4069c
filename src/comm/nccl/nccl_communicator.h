// Collectives over NCCL between GPUs of different ranks.
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

// A communicator over NCCL. A collective is one group of NCCL calls, one call a part; parts without
// elements are left out, on all ranks alike. NCCL forms sums in an order of its own: the same on
// all ranks, but not rank order. The communicator does not average (Capabilities::averages is
// false), because NCCL has its fastest kernels for sums. Maxima are gathered and formed by a
// kernel of this library, in which NaN wins; NCCL's would lose it. They are of few elements.
class NcclCommunicator final : public Communicator {
 public:
  // The kind of memory that allocate() returns.
  enum class Memory : uint8_t { kPlain, kWindows };  // plain device memory, or windows
  // Requires: two ranks or more.
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
  // Returns a scratch area of at least this size, for work on `stream` until scratch_used_ is
  // recorded.
  std::byte* scratch(int64_t bytes, Stream& stream);

  const std::shared_ptr<NcclSession> session_;
  const NcclSession::MemberPtr member_;
  const std::vector<int> ranks_;  // ranks of the job
  const int rank_;
  const std::optional<NcclWindows> windows_;
  std::shared_ptr<Buffer> scratch_;  // null until needed; shared with streams that outgrew it
  Event scratch_used_;
};

// Makes this rank's communicator of `ranks`. Collective over all ranks of the job, which may make
// different groups: the first rank of each group creates its id, and all ranks exchange the ids
// over the control plane. Blocks until the group has passed a first collective, so that no later
// one waits for connections.
std::unique_ptr<Communicator> make_nccl_communicator(std::shared_ptr<NcclSession> session,
                                                     std::string_view name,
                                                     const std::vector<int>& ranks);

}  // namespace fsdp
