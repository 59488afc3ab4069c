// The control plane of one rank of a simulated world.
#pragma once

#include "comm/job/control_plane.h"
#include "comm/job/failure_cell.h"
#include "comm/job/posted_collectives.h"

namespace fsdp {

// A control plane whose other ranks send the same texts and issue the same collectives as this
// rank, and never end.
class SimulatedControlPlane final : public ControlPlane {
 public:
  SimulatedControlPlane(int rank, int world_size) : rank_(rank), world_size_(world_size) {}

  int rank() const override { return rank_; }
  int world_size() const override { return world_size_; }
  // Returns `text` for each rank. Errors: CommError, the first failure, if there is one.
  std::vector<std::string> exchange(const CollectiveTag& tag, std::string_view text) override {
    if (failed(failure_)) throw_first_failure(tag.label);
    return std::vector<std::string>(world_size_, std::string(text));
  }
  // Returns at once, because the simulated ranks agree. Errors: those of exchange.
  void agree(const CollectiveTag& tag, const std::vector<std::string>& /*lines*/) override {
    if (failed(failure_)) throw_first_failure(tag.label);
  }
  void fail(const Failure& failure) noexcept override { keep_first(failure_, failure); }
  std::optional<Failure> first_failure() const override { return fsdp::first_failure(failure_); }
  std::optional<PeerEnd> end_of(int /*rank*/) const override { return std::nullopt; }
  Failure failure_of_end(int rank, PeerEnd /*end*/) const override { return {.rank = rank}; }
  void post(const PostedCollective& posted) noexcept override { fsdp::post(posted_, posted); }
  uint64_t last_posted(int /*rank*/, uint64_t /*sequence*/) const override { return posted_.last; }
  std::optional<PostedCollective> posted(int /*rank*/, uint64_t sequence) const override {
    return find_posted(posted_, sequence);
  }
  std::optional<uint64_t> posted_mark(int /*rank*/, uint64_t sequence) const override {
    return find_mark(posted_, sequence);
  }
  void report_slow(const SlowRank& /*slow*/) const override {}

 private:
  int rank_;
  int world_size_;
  FailureCell failure_{};
  PostedCollectives posted_{};
};

}  // namespace fsdp
