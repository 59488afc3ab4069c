// A group with simulated peers. It has the interface of a real group, but runs in one process and
// transfers nothing.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>

#include "comm/communicator.h"

namespace fsdp {

class Device;

// The effect of collectives on memory.
enum class SimulatedPeers : uint8_t {
  kAbsent,  // no effect: a collective costs only its issue
  kSilent,  // the result contains only this rank's input, the rest is unchanged
  kAlike,   // as if every rank had sent the same data as this rank
};

// A simulated group, with this rank's index in it.
struct SimulatedGroup {
  int rank = 0;
  int size = 1;
  SimulatedPeers peers = SimulatedPeers::kAlike;
  // The time for which each all_gather and each reduce_scatter occupies its stream.
  std::chrono::nanoseconds wire_time{};
  // Called for each collective that is issued. A plan computes its time.
  std::function<void(const Collective& collective, Stream& stream)> on_issue{};
  const Device* device = nullptr;  // provides the memory; null: host memory
  Capabilities capabilities{};     // if maps_ranks is set, views have addresses of `device`
  bool has_windows = false;        // if false, with_windows throws
};

// A communicator without peers. It compares no arguments, and no collective fails.
class SimulatedCommunicator final : public Communicator {
 public:
  explicit SimulatedCommunicator(SimulatedGroup group) : group_(group) {}

  int rank() const override { return group_.rank; }
  int size() const override { return group_.size; }
  Buffer allocate(int64_t bytes) override;
  RanksView map_ranks(const void* mine, int64_t bytes) override;
  Capabilities capabilities() const override { return group_.capabilities; }
  void issue(const Collective& collective, Stream& stream) override;
  // Returns the same group, because simulated ranks pass the same color and key as this rank.
  std::unique_ptr<Communicator> split(int color, int key) override;
  std::unique_ptr<Communicator> with_windows(bool by_copy_engines) override;
  void abort(std::string_view) noexcept override {}  // no rank waits

 private:
  bool hears(const Collective& collective) const;
  void move(Operation operation, ReduceOp op, const CollectivePart& part) const;
  void gather(const CollectivePart& part) const;
  void reduce(const CollectivePart& part, int64_t begin, ReduceOp op) const;

  SimulatedGroup group_;
};

}  // namespace fsdp
