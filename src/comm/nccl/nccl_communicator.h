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

// A communicator over NCCL. Each collective is one group of NCCL calls, with one call per part.
// Parts without elements are skipped on all ranks. NCCL forms sums in its own order, which is the
// same on all ranks but is not rank order. The communicator does not average
// (Capabilities::averages is false), because NCCL has its fastest kernels for sums. For maxima, the
// inputs are gathered and a kernel of this library computes the maximum. This kernel returns NaN if
// any input is NaN, while NCCL's kernel could drop the NaN. Maxima have few elements.
class NcclCommunicator final : public Communicator {
 public:
  // The kind of memory that allocate() returns.
  enum class Memory : uint8_t { kPlain, kWindows };  // plain device memory, or windows
  // `session` and `member` must belong to a group of at least two ranks.
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
  // Returns scratch memory of at least this size. Work on `stream` may use it until scratch_used_
  // is recorded.
  std::byte* scratch(int64_t bytes, Stream& stream);

  const std::shared_ptr<NcclSession> session_;
  const NcclSession::MemberPtr member_;
  const std::vector<int> ranks_;  // ranks in the job's numbers
  const int rank_;
  const std::optional<NcclWindows> windows_;
  std::shared_ptr<Buffer> scratch_;  // null before first use; shared with the work that uses it
  Event scratch_used_;
};

// Makes this rank's communicator of `ranks`. Collective over all ranks of the job. Different ranks
// may make different groups. The first rank of each group creates the group's id, and all ranks
// exchange the ids over the control plane. Blocks until the group has run a first collective, so
// that no later collective waits for connections.
std::unique_ptr<Communicator> make_nccl_communicator(std::shared_ptr<NcclSession> session,
                                                     std::string_view name,
                                                     const std::vector<int>& ranks);

}  // namespace fsdp
