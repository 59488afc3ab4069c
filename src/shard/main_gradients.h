// The gradients that have been reduced: fp32, one run a segment, as long as the main shards where
// gradients are scattered, else whole on every rank.
//
//   kNone ──take──> kReady ──give_back──> kNone
//
// While somebody holds views of the main shards (MainShards::views), gradients are handed out and
// taken back through their `.grad`, too. Gradients of which no sum exists yet have tensors without
// memory there, so that an optimizer which steps before the reduction does not pass them by.
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
  kReady,  // memory is taken: a slot for each trainable segment with elements
};

// Throws StateError: some gradients of the unit are undefined, others are not.
[[noreturn]] void refuse_cleared_gradients(std::string_view fqn, std::string cause);

// Not thread-safe: the engine's mutex covers it.
class MainGradients {
 public:
  // `parameters`: the module's, whose requires_grad counts. Both live as long.
  MainGradients(const UnitContext& unit, MainShards& main,
                const std::vector<at::Tensor>& parameters);
  ~MainGradients();
  MainGradients(const MainGradients&) = delete;
  MainGradients& operator=(const MainGradients&) = delete;

  MainGradientState state() const { return state_; }
  // They are sums within groups, of which the sum over groups is still to come. Where that cuts
  // them, only this rank's slice is anything afterwards.
  bool await_across() const { return await_across_; }
  void set_await_across(bool await) { await_across_ = await; }
  bool are_ready() const { return state_ == MainGradientState::kReady; }
  // Elements that a trainable segment's gradient has here.
  int64_t numel(int segment) const;
  // The segment has a gradient: it is trainable, and not of empty parameters alone.
  bool has(int segment) const { return slots_[segment] != nullptr; }
  // Requires: has(segment), as for what follows.
  std::byte* at(int segment, int64_t element) const;
  // This rank's slice of it, as the main shard's.
  float* slice(int segment) const;
  // Of `numel` elements of a sum: all of it, or this rank's slice.
  std::byte* place_of(int segment, int64_t numel) const;

  // Memory that `stream` may write when it has passed this.
  void take(Stream& stream);
  // Views' `.grad` are undefined then. What reductions still do to the memory is waited for by its
  // next user.
  void give_back();
  // Zero-fills the gradients of some parameters, and leaves their views' `.grad` undefined. They
  // are cleared until the unit gets others.
  void clear(std::span<const int> parameters);
  bool is_cleared(int parameter) const { return cleared_[parameter] != 0; }
  void forget_cleared() { std::ranges::fill(cleared_, 0); }
  // A reduction has added to them.
  void note_added();
  // Returns how many have, since the engine was made.
  int64_t additions() const { return additions_; }

  // Puts views of the slices into the `.grad` of main shards' views that have none.
  void attach_views();
  // All of them are undefined: LibTorch's zero_grad has cleared what is still kReady here.
  bool are_cleared() const;
  // While they are not ready, and whole ones are kept: what any access to `.grad` throws.
  void guard_views();
  // What was done to `.grad` since: cleared ones become zero, replaced ones are copied in. False,
  // having done nothing, if all were cleared. `kept`: whole gradients wait beside them.
  // Errors: StateError where gradients that wait were taken away one by one, or replaced.
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
  std::vector<at::Tensor> runs_;  // by segment: what views are made of; undefined before the first
  std::optional<torch_compat::BoundStorage> nothing_;  // what guards are views of
  std::vector<at::Tensor> guards_;                     // by parameter, once there were any
  bool are_guarded_ = false;
};

}  // namespace fsdp
