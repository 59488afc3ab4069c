// MainGradients holds a unit's reduced gradients in fp32, as one contiguous run per segment. A run
// is the piece of the segment whose gradients this rank keeps under the unit's strategy. The piece
// is the whole segment, or the slice of the main shard, or a piece that contains the slice.
//
//   kNone ──take──> kReady ──give_back──> kNone
//
// While views of the main shards exist (MainShards::views), their `.grad` shows the gradients, and
// changes of `.grad` are adopted. If whole gradients are kept and none is reduced yet, or if an
// update in backward has used the gradients, `.grad` is a guard: a tensor without memory that
// throws on access. Without the guard, another optimizer would silently skip these parameters.
#pragma once

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/accumulate.h"
#include "libtorch/torch_compat.h"
#include "shard/main_shards.h"

namespace fsdp {

enum class MainGradientState : uint8_t {
  kNone,   // nothing was reduced since zero_grad
  kReady,  // every trainable segment with elements has a slot
};

// Throws the StateError for a unit in which some gradients are undefined and others are not.
[[noreturn]] void refuse_cleared_gradients(std::string_view fqn, std::string cause);

// Not thread-safe: the engine's mutex guards it.
class MainGradients {
 public:
  // `parameters` are the module's tensors. While requires_grad of one of them is false, its view
  // gets no `.grad`. All arguments must outlive this object.
  MainGradients(const UnitContext& unit, MainShards& main,
                const std::vector<at::Tensor>& parameters);
  ~MainGradients();
  MainGradients(const MainGradients&) = delete;
  MainGradients& operator=(const MainGradients&) = delete;

  MainGradientState state() const { return state_; }
  // True if the gradients are sums within groups that must still be summed over the groups. If that
  // sum scatters the gradients, only this rank's slice is defined afterwards.
  bool await_across() const { return await_across_; }
  void set_await_across(bool await) { await_across_ = await; }
  bool are_ready() const { return state_ == MainGradientState::kReady; }
  // Returns the number of elements of a trainable segment's gradient on this rank.
  int64_t numel(int segment) const;
  // Returns true if the segment's gradient has memory. The gradient has no memory before take() is
  // called, if the segment is frozen, or if all parameters of the segment are empty.
  bool has(int segment) const { return slots_[segment] != nullptr; }
  // Returns the address of an element of the segment's gradient. This function and the next two
  // require has(segment).
  std::byte* at(int segment, int64_t element) const;
  // Returns the part of the gradient that belongs to this rank's slice of the main shard.
  float* slice(int segment) const;
  // Returns the address at which a sum of `numel` elements belongs: the begin of the whole run, or
  // of the slice.
  std::byte* place_of(int segment, int64_t numel) const;

  // Acquires memory for the gradients. `stream` waits until it may write this memory (wait 9).
  void take(Stream& stream);
  // Releases the memory of the gradients and makes the `.grad` of the main shards' views undefined.
  // The next user of the memory waits for reductions that still write it.
  void give_back();
  // Zero-fills the gradients of some parameters and makes the `.grad` of their views undefined.
  // These gradients count as cleared until the unit gets new gradients.
  void clear(std::span<const int> parameters);
  bool is_cleared(int parameter) const { return cleared_[parameter] != 0; }
  void forget_cleared() { std::ranges::fill(cleared_, 0); }
  // Counts a reduction that has added to the main gradients.
  void note_added();
  // Returns the number of calls of note_added since the engine was made.
  int64_t additions() const { return additions_; }

  // Sets each undefined `.grad` of the main shards' views to a view of its gradient.
  void attach_views();
  // Returns true if the `.grad` of all views is undefined although the gradients are kReady here.
  // In this case LibTorch's zero_grad has cleared them.
  bool are_cleared() const;
  // Sets each undefined `.grad` of the main shards' views to a guard, which throws on access.
  // Called while whole gradients are kept and none is reduced, and after an update in backward.
  void guard_views();
  // Adopts changes of `.grad` since the last call. If the user has cleared a `.grad`, the main
  // gradient becomes zero. If the user has assigned another tensor, its values are copied to the
  // main gradient. Returns false, without effect, if every `.grad` was cleared. `kept` is true if
  // the unit also keeps whole gradients that are not reduced yet. Errors: StateError if `kept` and
  // some gradients were cleared or replaced.
  bool adopt_user_gradients(bool kept);

 private:
  bool is_trainable(int parameter) const;
  at::Tensor view(int parameter);
  void forget_runs();
  at::Tensor make_guard(int64_t numel);
  bool is_guard(int parameter) const;

  const UnitContext& unit_;
  MainShards& main_;
  const std::vector<at::Tensor>& parameters_;
  MainGradientState state_ = MainGradientState::kNone;
  int64_t additions_ = 0;
  std::vector<char> cleared_;  // by parameter
  bool await_across_ = false;
  std::vector<Slot*> slots_;      // by segment; null for a segment without a gradient
  std::vector<at::Tensor> runs_;  // by segment: base of the views; undefined before the first view
  std::optional<torch_compat::BoundStorage> nothing_;  // storage of the guards
  std::vector<at::Tensor> guards_;                     // by parameter; empty before the first guard
  bool are_guarded_ = false;
};

}  // namespace fsdp
