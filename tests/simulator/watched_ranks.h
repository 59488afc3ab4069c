// Makes ranks of a test on the checked device. Unordered work fails the test.
#pragma once

#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "simulator/checked_mesh.h"
#include "simulator/operator_work.h"
#include "support/run_ranks.h"

namespace fsdp::testing {

class CheckedWatch : public RankWatch {
 public:
  explicit CheckedWatch(std::unique_ptr<CheckedDevice> device) : device_(std::move(device)) {}

  void begin() override { operators_.emplace(*device_); }
  void end(bool threw) override {
    operators_.reset();
    if (threw) return;
    std::string text;
    for (const std::string& each : device_->check().found()) text += each + "\n";
    if (!text.empty()) throw std::runtime_error("out of order: " + text);
  }

 private:
  const std::unique_ptr<CheckedDevice> device_;
  std::optional<OperatorWork> operators_;
};

inline std::vector<WatchedRank> make_checked_ranks(int world, const MeshOptions& options) {
  std::vector<WatchedRank> ranks;
  for (CheckedRank& rank : checked_ranks(world, options)) {
    ranks.push_back({std::make_shared<CheckedWatch>(std::move(rank.device)), std::move(rank.mesh)});
  }
  return ranks;
}

}  // namespace fsdp::testing
