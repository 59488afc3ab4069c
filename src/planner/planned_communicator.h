// A group whose other ranks are imagined, over memory that is not there: it counts what it is
// given.
#pragma once

#include <fsdp/plan.h>

#include "comm/communicator.h"
#include "runtime/device.h"

namespace fsdp {

struct PlannedGroup {
  int size = 1;
  // The ranks show their memory, as processes of one host do.
  bool maps_ranks = false;
  // As NCCL does: neither an average nor what lies in several runs.
  bool by_nccl = false;
};

// As rank 0 of the group.
class PlannedCommunicator final : public Communicator {
 public:
  // The device lives as long.
  PlannedCommunicator(const Device& device, PlannedGroup group) : device_(device), group_(group) {}

  int rank() const override { return 0; }
  int size() const override { return group_.size; }
  Buffer allocate(int64_t bytes) override { return device_.allocate(bytes, MemoryKind::kDevice); }
  RanksView map_ranks(const void* mine, int64_t bytes) override;
  Capabilities capabilities() const override {
    return {.averages = !group_.by_nccl,
            .takes_runs = !group_.by_nccl,
            .maps_ranks = group_.maps_ranks};
  }
  void issue(const Collective& /*collective*/, Stream& /*stream*/) override {}
  std::unique_ptr<Communicator> split(int color, int key) override;
  std::unique_ptr<Communicator> with_windows(bool by_copy_engines) override;
  void abort(std::string_view /*cause*/) noexcept override {}

 private:
  const Device& device_;
  const PlannedGroup group_;
};

}  // namespace fsdp
