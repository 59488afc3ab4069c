// The control plane of ranks that share a control segment, which are threads of a process or
// processes of a host.
#pragma once

#include <memory>

#include "comm/job/control_plane.h"
#include "comm/job/job_member.h"
#include "comm/job/text_exchange.h"

namespace fsdp {

// A control plane over a control segment. It does not know the records that ranks of other hosts
// have posted. Texts are exchanged over the mesh's control communicator.
// This communicator compares an exchange with other collectives that ranks issue on it.
class SegmentControlPlane : public ControlPlane {
 public:
  // `control` must connect all ranks and must exist while texts are exchanged. `member` is shared
  // with the rank's communicators.
  SegmentControlPlane(std::shared_ptr<const JobMember> member, Communicator& control)
      : member_(std::move(member)), control_(control) {}

  int rank() const override { return member_->rank(); }
  int world_size() const override { return member_->size(); }
  std::vector<std::string> exchange(const CollectiveTag& tag, std::string_view text) override {
    return exchange_texts(control_, text, tag);
  }
  void fail(const Failure& failure) noexcept override { member_->fail(failure); }
  std::optional<Failure> first_failure() const override {
    return fsdp::first_failure(member_->control().failure());
  }
  void leave() noexcept override { member_->leave(); }
  std::optional<PeerEnd> end_of(int rank) const override { return member_->end_of(rank); }
  Failure failure_of_end(int rank, PeerEnd end) const override {
    return fsdp::failure_of_end(member_->control(), rank, end);
  }
  void post(const PostedCollective& posted) noexcept override {
    fsdp::post(in_order_of(posted.record.sequence, rank()), posted);
  }
  uint64_t last_posted(int rank, uint64_t sequence) const override {
    return member_->control().last_posted(rank, order_of(sequence));
  }
  std::optional<PostedCollective> posted(int rank, uint64_t sequence) const override {
    if (!member_->control().is_local(rank)) return std::nullopt;
    return find_posted(in_order_of(sequence, rank), sequence);
  }
  std::optional<uint64_t> posted_mark(int rank, uint64_t sequence) const override {
    if (!member_->control().is_local(rank)) return std::nullopt;
    return find_mark(in_order_of(sequence, rank), sequence);
  }
  void report_slow(const SlowRank& slow) const override { member_->report_slow(slow); }

 protected:
  const std::shared_ptr<const JobMember> member_;

 private:
  PostedCollectives& in_order_of(uint64_t sequence, int rank) const {
    return member_->control().posted(rank, order_of(sequence));
  }

  Communicator& control_;
};

}  // namespace fsdp
