#include "comm/job/segment_control_plane.h"

#include "comm/job/text_exchange.h"

namespace fsdp {

std::vector<std::string> SegmentControlPlane::exchange(const CollectiveTag& tag,
                                                       std::string_view text) {
  return exchange_texts(control_, text, tag);
}

std::optional<Failure> SegmentControlPlane::first_failure() const {
  return fsdp::first_failure(member_->control().failure());
}

}  // namespace fsdp
