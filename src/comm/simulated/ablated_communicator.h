// Communicators of a real group that transfer no data. They serve a classic diagnostic: the
// comparison of a run with the same run without communication (an ablated run). Works only for
// processes, because threads of one process do not run independently of each other.
#pragma once

#include <memory>

#include "comm/mesh_parts.h"
#include "comm/simulated/simulated_communicator.h"

namespace fsdp {

// A communicator with the memory, mappings and groups of `real`. Its collectives are simulated with
// silent peers, so the results of a run are meaningless.
class AblatedCommunicator final : public Communicator {
 public:
  explicit AblatedCommunicator(std::unique_ptr<Communicator> real);

  int rank() const override { return real_->rank(); }
  int size() const override { return real_->size(); }
  Buffer allocate(int64_t bytes) override;
  RanksView map_ranks(const void* mine, int64_t bytes) override;
  Capabilities capabilities() const override { return real_->capabilities(); }
  void issue(const Collective& collective, Stream& stream) override {
    silent_.issue(collective, stream);
  }
  std::unique_ptr<Communicator> split(int color, int key) override;
  void abort(std::string_view cause) noexcept override { real_->abort(cause); }

 private:
  std::unique_ptr<Communicator> real_;
  SimulatedCommunicator silent_;
};

// Replaces all communicators of engines and modules by ablated ones. For use as MeshMaking::change.
void ablate(MeshParts& parts);

}  // namespace fsdp
