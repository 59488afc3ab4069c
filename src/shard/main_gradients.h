// MainGradients holds a unit's reduced gradients: fp32, one run a segment. A run is this rank's
// piece under the row's placement of gradients: whole, or the slice of the main shard, or a piece
// that contains the slice.
//
//   kNone ──take──> kReady ──give_back──> kNone
//
// While views of the main shards exist (MainShards::views), their `.grad` shows the gradients, and
// changes of `.grad` are adopted. Gradients that are not reduced yet are guarded there by tensors
// without memory: otherwise an optimizer that steps before the reduction would skip them silently.
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
  kReady,  // each trainable segment with elements has a slot
};

// Throws StateError: some gradients of the unit are undefined, others are not.
[[noreturn]] void refuse_cleared_gradients(std::string_view fqn, std::string cause);

// Not thread-safe: the engine's mutex guards it.
class MainGradients {
 public:
  // `parameters` are the module's tensors, whose requires_grad counts. Requires: all arguments live
  // as long.
  MainGradients(const UnitContext& unit, MainShards& main,
                const std::vector<at::Tensor>& parameters);
  ~MainGradients();
  MainGradients(const MainGradients&) = delete;
  MainGradients& operator=(const MainGradients&) = delete;

  MainGradientState state() const { return state_; }
  // True if they are sums within groups, which are still to be summed over the groups. If that sum
  // scatters them, only this rank's slice is defined afterwards.
  bool await_across() const { return await_across_; }
  void set_await_across(bool await) { await_across_ = await; }
  bool are_ready() const { return state_ == MainGradientState::kReady; }
  // Returns the number of elements of a trainable segment's gradient on this rank.
  int64_t numel(int segment) const;
  // Returns true if the segment's gradient has memory. It has none before take, if the segment is
  // frozen, or if all its parameters are empty.
  bool has(int segment) const { return slots_[segment] != nullptr; }
  // Returns the address of an element. Requires: has(segment), also for the next two.
  std::byte* at(int segment, int64_t element) const;
  // Returns the part that belongs to this rank's slice of the main shard.
  float* slice(int segment) const;
  // Returns the place of a sum of `numel` elements: the whole run, or the slice.
  std::byte* place_of(int segment, int64_t numel) const;

  // Acquires the memory. `stream` waits until it may write it (wait 9).
  void take(Stream& stream);
  // Releases the memory and leaves the `.grad` of views undefined. The memory's next user waits for
  // reductions that still write it.
  void give_back();
  // Zero-fills the gradients of some parameters and leaves their views' `.grad` undefined. They
  // count as cleared until the unit gets new gradients.
  void clear(std::span<const int> parameters);
  bool is_cleared(int parameter) const { return cleared_[parameter] != 0; }
  void forget_cleared() { std::ranges::fill(cleared_, 0); }
  // Counts a reduction that has added to them.
  void note_added();
  // Returns the number of such reductions since the engine was made.
  int64_t additions() const { return additions_; }

  // Sets each undefined `.grad` of the main shards' views to a view of its gradient.
  void attach_views();
  // Returns true if all these `.grad` are undefined: LibTorch's zero_grad has cleared gradients
  // that are still kReady here.
  bool are_cleared() const;
  // Sets each undefined `.grad` to a guard, whose access throws, while whole gradients are kept and
  // none is reduced.
  void guard_views();
  // Adopts changes of `.grad` since the last call: cleared gradients become zero, replaced ones are
  // copied. Returns false, without effect, if all were cleared. `kept`: whole gradients wait beside
  // them. Errors: StateError if some of the gradients that wait were cleared or replaced.
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
  std::vector<Slot*> slots_;      // by segment, null for one without a gradient
  std::vector<at::Tensor> runs_;  // by segment: base of the views; undefined before the first view
  std::optional<torch_compat::BoundStorage> nothing_;  // storage of the guards
  std::vector<at::Tensor> guards_;                     // by parameter; empty before the first guard
  bool are_guarded_ = false;
};

}  // namespace fsdp
