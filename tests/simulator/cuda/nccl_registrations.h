// Memory that ranks register with communicators of the simulated NCCL. Requires: the caller holds
// runtime_mutex().
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "comm/nccl/nccl_library.h"

// A window of one rank.
struct fsdp::nccl::Window {
  Comm* comm = nullptr;
  int number = 0;  // number of the window in its communicator, equal on all ranks
  const std::byte* begin = nullptr;
  int64_t bytes = 0;
  bool open = true;
};

namespace fsdp::testing::sim {

class Simulation;
struct NcclMeeting;
struct NcclRequest;

// Errors of all functions: Misuse if the call would corrupt memory or block in NCCL.
class NcclRegistrations {
 public:
  explicit NcclRegistrations(Simulation& simulation) : simulation_(simulation) {}

  // The version that NCCL reports.
  int version = 23007;
  // The number of collectives that receive in a window and send from other memory. NCCL needs an
  // additional copy for them.
  int64_t half_registered = 0;

  // Allocates on the calling thread's device. Returns null if it does not have enough free memory.
  void* allocate(int64_t bytes);
  void free(void* memory);

  // Starts a registration. It is in progress until all ranks have called this function. Until then
  // `*place` is null.
  void begin(nccl::Comm& comm, void* memory, int64_t bytes, nccl::Window** place);
  bool is_under_way(const nccl::Comm& comm) const { return under_way_.contains(&comm); }
  nccl::Result ask(const nccl::Comm& comm);
  void end(const nccl::Comm& comm, nccl::Window* window);

  // Returns the offset and the window in which the request receives.
  std::string place_of(const nccl::Comm& comm, const NcclRequest& request);
  void require_none(const nccl::Comm& comm) const;
  // Closes the windows of an aborted communicator.
  void forget(const nccl::Comm& comm);

 private:
  struct UnderWay {
    nccl::Window* window = nullptr;
    nccl::Window** place = nullptr;
  };
  void require_unused(const nccl::Window& window) const;

  Simulation& simulation_;
  std::map<const void*, int64_t> memory_;                      // bytes, by begin
  std::vector<std::unique_ptr<nccl::Window>> windows_;         // including closed ones
  std::map<const NcclMeeting*, std::vector<int>> ranks_came_;  // by window number
  std::map<const nccl::Comm*, UnderWay> under_way_;
};

}  // namespace fsdp::testing::sim
