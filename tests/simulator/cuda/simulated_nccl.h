// NCCL between ranks that are threads of a test, each on a simulated GPU of its own: the functions
// that nccl::Library names.
//
// [Note: simulated collectives]
// A group of calls posts one collective. When the rank has asked after its progress as often as the
// seed has drawn for it, it is launched on its stream; the first one of a communicator, which makes
// the connections, not before all ranks have posted theirs. A first piece of work takes what the
// rank sends, a second waits for the first ones of all ranks and leaves what it receives. What a
// rank records between its post and the launch is before the collective, as it would be on a GPU.
// Sums are formed in rank order.
//
// [Note: simulated ends]
// As NCCL does, an abort tells the communicator's kernels to quit and then waits for the streams
// that it was given: outside of a group at once, in one when the group ends, after all aborts of
// the group. A communicator's destruction waits until each of its ranks has finalized or is gone:
// ranks stand for processes of one host, whose proxies wait for each other's.
//
// What would stop real GPUs, spoil memory or crash is a report of the simulated GPU: collectives
// that differ between ranks, launches of several communicators in different orders, ranks that wait
// for each other in two of them, calls outside of a group or from a thread whose device is another
// one, calls after an abort, an abort while a thread of the device is inside another call, a
// communicator that is destroyed before it is finalized, or not at all.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "comm/nccl/nccl_library.h"
#include "simulator/cuda/simulated_gpu.h"

namespace fsdp::testing::sim {

// How a call goes wrong.
enum class NcclWrong : uint8_t {
  kFails,           // with `result`
  kHangs,           // it does not come back before let_go(); then it fails
  kStaysInProgress  // what it has begun never gets through, until it is aborted
};

struct NcclFault {
  std::string name{};           // "ncclGroupEnd"
  int64_t n = 1;                // the n-th such call from now on
  std::optional<int> device{};  // of threads of this device; empty: of all of them together
  NcclWrong wrong = NcclWrong::kFails;
  nccl::Result result = nccl::Result::kSystemError;
};

// While it lives, its library works. One at a time; the GPUs outlive it. Thread-safe.
class SimulatedNccl {
 public:
  // A call is in progress for at most so many questions after it.
  explicit SimulatedNccl(SimulatedGpu& gpu, uint32_t seed = 1, int most_questions = 3);
  // What communicators have left is a report.
  ~SimulatedNccl();
  SimulatedNccl(const SimulatedNccl&) = delete;
  SimulatedNccl& operator=(const SimulatedNccl&) = delete;

  const nccl::Library& library() const;

  // That it says it is; 23007 at first.
  void set_version(int version);
  // Of ranks, that were made with NCCL_CTA_POLICY_ZERO.
  int zero_cta_communicators() const;
  // Collectives that received in registered memory what was sent from other.
  int64_t half_registered() const;
  void script(const NcclFault& fault);
  // The communicator of this rank, of the n-th that was made, finds an error on its own.
  void break_communicator(int n, int rank, nccl::Result result);
  void let_go();
  // Collectives that are launched from now on never end, until they are aborted.
  void hang_collectives();
  int64_t calls(std::string_view name, std::optional<int> device = {}) const;

  struct State;

 private:
  const std::unique_ptr<State> state_;
};

}  // namespace fsdp::testing::sim
