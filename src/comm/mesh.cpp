#include "fsdp/mesh.h"

#include <string_view>

#include "comm/mesh_state.h"

namespace fsdp {
namespace {

// Returns the tag of an exchange of texts. The tag's count is 0, because texts may have different
// lengths on different ranks. Such a difference must not count as a disagreement.
CollectiveTag tag_of_text(MeshState& state, std::string_view what) {
  return state.next_control_tag(Operation::kAllGather, 0, what);
}

}  // namespace

int Mesh::rank() const { return state_->parts().control_plane->rank(); }
int Mesh::world_size() const { return state_->parts().control_plane->world_size(); }
int Mesh::job_rank() const { return state_->parts().control_plane->job_rank(rank()); }
int Mesh::local_rank() const { return state_->parts().topology.local_rank; }
const std::string& Mesh::host() const { return state_->parts().topology.host; }
int Mesh::size(Axis axis) const { return state_->shape().size(axis); }
int Mesh::rank(Axis axis) const { return state_->shape().rank(axis, rank()); }

void Mesh::agree(std::string_view what, const std::vector<std::string>& lines) const {
  state_->parts().control_plane->agree(tag_of_text(*state_, what), lines);
}

std::vector<std::string> Mesh::exchange(std::string_view what, std::string_view text) const {
  return state_->parts().control_plane->exchange(tag_of_text(*state_, what), text);
}

void Mesh::warn(const ErrorText& warning) const {
  const auto& on_event = state_->parts().on_event;
  if (on_event) on_event({.kind = MeshEvent::Kind::kWarning, .text = warning});
}

void Mesh::note(std::string text) const {
  const auto& on_event = state_->parts().on_event;
  if (on_event) on_event({.kind = MeshEvent::Kind::kNote, .text = {.what = std::move(text)}});
}

void Mesh::abort(std::string_view cause) const noexcept {
  state_->parts().control_plane->abort(cause);
}

}  // namespace fsdp
