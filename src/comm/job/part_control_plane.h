// The control plane of a part of a mesh. The part's ranks agree among themselves, but fail together
// with the whole job.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "comm/job/control_plane.h"
#include "comm/job/text_exchange.h"

namespace fsdp {

// A part's control plane. Texts are exchanged over the part's control communicator. All other calls
// are forwarded to the job's control plane, because first failure, ends of ranks and posted
// collectives belong to the job. A rank that leaves a part stays in the job.
class PartControlPlane final : public ControlPlane {
 public:
  // `job` must outlive this plane. `control` must connect the part's ranks and must exist while
  // texts are exchanged. `ranks` are the part's ranks in the job's numbers.
  PartControlPlane(ControlPlane& job, Communicator& control, std::vector<int> ranks)
      : job_(job), control_(control), ranks_(std::move(ranks)) {}

  int rank() const override { return control_.rank(); }
  int world_size() const override { return control_.size(); }
  int job_rank(int rank) const override { return ranks_[static_cast<size_t>(rank)]; }
  std::vector<std::string> exchange(const CollectiveTag& tag, std::string_view text) override {
    return exchange_texts(control_, text, tag);
  }
  void fail(const Failure& failure) noexcept override { job_.fail(failure); }
  std::optional<Failure> first_failure() const override { return job_.first_failure(); }
  std::optional<PeerEnd> end_of(int rank) const override { return job_.end_of(rank); }
  Failure failure_of_end(int rank, PeerEnd end) const override {
    return job_.failure_of_end(rank, end);
  }
  void post(const PostedCollective& posted) noexcept override { job_.post(posted); }
  uint64_t last_posted(int rank, uint64_t sequence) const override {
    return job_.last_posted(rank, sequence);
  }
  std::optional<PostedCollective> posted(int rank, uint64_t sequence) const override {
    return job_.posted(rank, sequence);
  }
  std::optional<uint64_t> posted_mark(int rank, uint64_t sequence) const override {
    return job_.posted_mark(rank, sequence);
  }
  void share_posted() override { job_.share_posted(); }
  void report_slow(const SlowRank& slow) const override { job_.report_slow(slow); }

 private:
  ControlPlane& job_;
  Communicator& control_;
  const std::vector<int> ranks_;
};

}  // namespace fsdp
