// Memory that ranks register with communicators of the simulated NCCL. Used under runtime_mutex().
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "comm/nccl/nccl_library.h"

// One rank's.
struct fsdp::nccl::Window {
  Comm* comm = nullptr;
  int number = 0;  // of its communicator's, alike on all ranks
  const std::byte* begin = nullptr;
  int64_t bytes = 0;
  bool open = true;
};

namespace fsdp::testing::sim {

class Simulation;
struct NcclMeeting;
struct NcclRequest;

// Errors (all): Misuse, for what would spoil memory or stop.
class NcclRegistrations {
 public:
  explicit NcclRegistrations(Simulation& simulation) : simulation_(simulation) {}

  // What NCCL says that it is.
  int version = 23007;
  // Collectives that receive in a window and send from elsewhere: NCCL copies for them.
  int64_t half_registered = 0;

  // Of the calling thread's device. Null: it has not so much left.
  void* allocate(int64_t bytes);
  void free(void* memory);

  // Under way until all ranks have come to it; `place` is null until then.
  void begin(nccl::Comm& comm, void* memory, int64_t bytes, nccl::Window** place);
  bool is_under_way(const nccl::Comm& comm) const { return under_way_.contains(&comm); }
  nccl::Result ask(const nccl::Comm& comm);
  void end(const nccl::Comm& comm, nccl::Window* window);

  // Where a collective of the communicator receives.
  std::string place_of(const nccl::Comm& comm, const NcclRequest& request);
  void require_none(const nccl::Comm& comm) const;
  // It was aborted.
  void forget(const nccl::Comm& comm);

 private:
  struct UnderWay {
    nccl::Window* window = nullptr;
    nccl::Window** place = nullptr;
  };
  void require_unused(const nccl::Window& window) const;

  Simulation& simulation_;
  std::map<const void*, int64_t> memory_;                      // bytes, by begin
  std::vector<std::unique_ptr<nccl::Window>> windows_;         // those closed, too
  std::map<const NcclMeeting*, std::vector<int>> ranks_came_;  // by number
  std::map<const nccl::Comm*, UnderWay> under_way_;
};

}  // namespace fsdp::testing::sim
