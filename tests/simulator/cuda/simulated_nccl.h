// NCCL between ranks that are threads of a test, each on its own simulated GPU: the functions of
// nccl::Library.
//
// [Note: simulated collectives]
// A group of calls posts one collective. It is launched on its stream once the rank has queried its
// progress as often as the seed has drawn. The first collective of a communicator makes the
// connections, so it is launched only after all ranks have posted theirs. A launch issues two
// pieces of work: the first copies the sent data, the second waits for the first ones of all ranks
// and writes the received data. Work that a rank issues between its post and the launch precedes
// the collective, as on a GPU. Sums are formed in rank order.
//
// [Note: simulated ends]
// As in NCCL, an abort stops the communicator's kernels and then waits for the streams of its
// collectives: outside of a group at once, else when the group ends, after all its aborts.
// Destroying a communicator waits until each of its ranks has finalized, aborted or destroyed its
// own: ranks stand for processes of one host, whose proxies wait for each other.
//
// Errors that would stop real GPUs, corrupt memory or crash are reports of the simulated GPU:
// collectives that differ between ranks, launches of several communicators in different orders,
// ranks that wait for each other in two communicators, calls outside of a group or from a thread
// with another current device, calls after an abort, an abort while a thread of the device is
// inside another call, a communicator that is destroyed before it is finalized, or not at all.
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

// The way in which a call fails.
enum class NcclWrong : uint8_t {
  kFails,           // returns `result`
  kHangs,           // returns only after let_go(), with `result`
  kStaysInProgress  // its operation stays in progress until it is aborted
};

struct NcclFault {
  std::string name{};           // "ncclGroupEnd"
  int64_t n = 1;                // counts such calls from now on
  std::optional<int> device{};  // counts only threads of this device; empty: all threads
  NcclWrong wrong = NcclWrong::kFails;
  nccl::Result result = nccl::Result::kSystemError;
};

// While an object lives, its library works. At most one exists at a time; the GPUs must outlive it.
// Thread-safe.
class SimulatedNccl {
 public:
  // `most_questions`: the highest number of queries for which an operation stays in progress.
  explicit SimulatedNccl(SimulatedGpu& gpu, uint32_t seed = 1, int most_questions = 3);
  // Reports communicators that still exist.
  ~SimulatedNccl();
  SimulatedNccl(const SimulatedNccl&) = delete;
  SimulatedNccl& operator=(const SimulatedNccl&) = delete;

  const nccl::Library& library() const;

  // Sets the version that the library returns; initially 23007.
  void set_version(int version);
  // Returns the number of ranks' communicators made with NCCL_CTA_POLICY_ZERO.
  int zero_cta_communicators() const;
  // Returns the number of collectives that received in registered memory, but sent from other
  // memory.
  int64_t half_registered() const;
  void script(const NcclFault& fault);
  // Lets this rank's communicator, in the n-th that was made, find an error on its own.
  void break_communicator(int n, int rank, nccl::Result result);
  void let_go();
  // Collectives launched from now on do not end until they are aborted.
  void hang_collectives();
  int64_t calls(std::string_view name, std::optional<int> device = {}) const;

  struct State;

 private:
  const std::unique_ptr<State> state_;
};

}  // namespace fsdp::testing::sim
