// NCCL for ranks that are threads of a test. Each rank has its own simulated GPU. The functions are
// those of nccl::Library.
//
// [Note: simulated collectives]
// A group of calls posts one collective. The rank must query its progress a number of times that
// the seed selects. Then the collective is launched on its stream. The first collective of a
// communicator makes the connections, so it is launched only after all ranks have posted theirs.
// A launch issues two pieces of work. The first copies the sent data. The second waits until this
// is done on all ranks, and writes the received data. Work that a rank issues between its post and
// the launch precedes the collective, as on a GPU. Sums are computed in rank order.
//
// [Note: simulated ends]
// As in NCCL, an abort stops the communicator's kernels and then waits for the streams of its
// collectives. Outside of a group it waits at once. In a group, the wait is at the group's end,
// after all its aborts.
// Destroying a communicator waits until each of its ranks has finalized, aborted or destroyed its
// own. The ranks represent processes of one host, and their proxies wait for each other.
//
// Errors that would stop real GPUs, corrupt memory or crash become reports of the simulated GPU.
// These are: collectives that differ between ranks; launches of several communicators in different
// orders; ranks that wait for each other in two communicators; calls outside of a group; calls from
// a thread with another current device; calls after an abort; an abort while a thread of the device
// is inside another call; and a communicator that is not finalized before it is destroyed, or not
// destroyed at all.
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
  std::string name{};           // for example "ncclGroupEnd"
  int64_t n = 1;                // number of the call that fails, counted from now on
  std::optional<int> device{};  // device whose threads' calls are counted; none: all devices
  NcclWrong wrong = NcclWrong::kFails;
  nccl::Result result = nccl::Result::kSystemError;
};

// While an object exists, the library that it returns works. At most one exists at a time. The GPUs
// must outlive it. Thread-safe.
class SimulatedNccl {
 public:
  // `most_questions` is the highest number of queries for which an operation remains in progress.
  explicit SimulatedNccl(SimulatedGpu& gpu, uint32_t seed = 1, int most_questions = 3);
  // Reports the communicators that still exist.
  ~SimulatedNccl();
  SimulatedNccl(const SimulatedNccl&) = delete;
  SimulatedNccl& operator=(const SimulatedNccl&) = delete;

  const nccl::Library& library() const;

  // Sets the version that the library reports. It is 23007 at first.
  void set_version(int version);
  // Returns the number of communicators, counted by rank, with NCCL_CTA_POLICY_ZERO.
  int zero_cta_communicators() const;
  // Returns the number of collectives that received in registered memory and sent from other
  // memory.
  int64_t half_registered() const;
  void script(const NcclFault& fault);
  // Makes rank `rank` find an error in the n-th communicator that was made. Other ranks see no
  // error.
  void break_communicator(int n, int rank, nccl::Result result);
  void let_go();
  // Makes collectives that are launched from now on hang until they are aborted.
  void hang_collectives();
  int64_t calls(std::string_view name, std::optional<int> device = {}) const;

  struct State;

 private:
  const std::unique_ptr<State> state_;
};

}  // namespace fsdp::testing::sim
