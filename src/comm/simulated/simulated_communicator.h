// A group whose other ranks are imagined: the same calls as with real peers, in one process, and
// nothing between ranks.
#pragma once

#include <chrono>
#include <cstdint>

#include "comm/communicator.h"

namespace fsdp {

class Device;

// What collectives leave in memory.
enum class SimulatedPeers : uint8_t {
  kAbsent,  // all of it stays as it is: the cost of issuing a collective alone
  kSilent,  // this rank's contribution lies where its result belongs, the rest is what lay there
  kAlike,   // every rank has sent what this one sends
};

struct SimulatedGroup {
  int rank = 0;
  int size = 1;
  SimulatedPeers peers = SimulatedPeers::kAlike;
  // For which each all_gather and each reduce_scatter occupies its stream.
  std::chrono::nanoseconds wire_time{};
  const Device* device = nullptr;  // whose memory it allocates; null: the host's
  Capabilities capabilities{};     // with maps_ranks the ranks' memory is addresses of the device
  bool has_windows = false;        // with_windows gives one; else it is refused
};

// Arguments are not compared with anybody's, and no collective fails.
class SimulatedCommunicator final : public Communicator {
 public:
  explicit SimulatedCommunicator(SimulatedGroup group) : group_(group) {}

  int rank() const override { return group_.rank; }
  int size() const override { return group_.size; }
  Buffer allocate(int64_t bytes) override;
  RanksView map_ranks(const void* mine, int64_t bytes) override;
  Capabilities capabilities() const override { return group_.capabilities; }
  void issue(const Collective& collective, Stream& stream) override;
  // The imagined ranks give the color and the key of this one: the same group.
  std::unique_ptr<Communicator> split(int color, int key) override;
  std::unique_ptr<Communicator> with_windows(bool by_copy_engines) override;
  void abort(std::string_view) noexcept override {}  // nobody waits

 private:
  bool hears(const Collective& collective) const;
  void move(Operation operation, ReduceOp op, const CollectivePart& part) const;
  void gather(const CollectivePart& part) const;
  void reduce(const CollectivePart& part, int64_t begin, ReduceOp op) const;

  SimulatedGroup group_;
};

}  // namespace fsdp
