// One unit's bytes: its main shards, the parameters seated on gathered memory, and its gradients on
// the way from autograd to the main gradient.
//
// Parameters       kSharded ──unshard──> kGathering ──wait_for_unshard──> kUnsharded ──reshard──> …
// Gradients        kNone ──open──> kCapturing ──reduce──> kNone, or ──keep──> kKept ──open──>
// kCapturing
//
// Where parameters are not sharded (one rank, DDP) the same calls seat the main shard itself, or
// its resident copy in param_dtype; nothing is gathered or copied. Not thread-safe: the engine's
// mutex covers it. Streams: docs/streams.md, waits 2 to 6.
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "plan/gradient_places.h"
#include "plan/shard_layout.h"
#include "plan/unit_actions.h"
#include "shard/lanes.h"
#include "shard/parameter_seats.h"
#include "shard/torch_compat.h"

namespace fsdp {

// fp32 elements of one segment that this rank optimises. `grad` is null without a gradient.
struct MainSegment {
  int segment = 0;  // of the unit's layout
  float* param = nullptr;
  float* grad = nullptr;
  void* resident_copy =
      nullptr;  // in copy_dtype, to be written by whoever changes param; may be null
  DType copy_dtype = DType::kFloat32;
  int64_t numel = 0;
  std::vector<Interval> intervals;  // parameter indices are the unit's
};

class ShardUnit {
 public:
  // `main` holds this rank's fp32 slice of each segment of `layout`; `parameters` are bound to the
  // unit's storages for good. Requires: no parameter has a gradient.
  ShardUnit(std::string fqn, Lanes& lanes, ShardLayout layout, std::vector<at::Tensor> parameters,
            std::vector<Buffer> main);
  ~ShardUnit();
  ShardUnit(const ShardUnit&) = delete;
  ShardUnit& operator=(const ShardUnit&) = delete;

  const std::string& fqn() const { return fqn_; }
  const ShardLayout& layout() const { return layout_; }
  const std::vector<at::Tensor>& parameters() const { return seats_.tensors(); }
  ParameterState state() const { return state_; }
  GradientState gradient_state() const { return gradient_state_; }
  // Bytes of the slots that unshard and open_gradients take; 0 where they take none.
  int64_t parameter_slot_bytes() const;
  int64_t reduce_slot_bytes() const;
  // Gradients arrive in the main gradient itself, which is taken when the unit opens.
  bool captures_in_place() const;
  // Of whole gradients between passes that do not reduce.
  int64_t kept_gradient_bytes() const;
  int64_t resident_bytes() const;

  // Issues the gather, or nothing where the ranks' shards are mapped side by side ([Note: reading
  // mapped shards] in lanes.h). A prefetch returns false, having done nothing, if no planned slot
  // is free.
  bool unshard(Urgency urgency);
  // Gathers in any case: the caller may write to what it gets.
  void unshard_own_copy();
  void wait_for_unshard();
  // From any state but kSharded; a gather still under way is waited for by the slot's next user.
  void reshard();

  // `will_reduce`: false if this pass keeps whole gradients.
  void open_gradients(bool will_reduce);
  void capture(int parameter, const at::Tensor& gradient);
  // Zero-fills what did not arrive, reduces over the ranks and adds to the main gradient.
  void reduce();
  void keep_gradients();
  // Throws away whole gradients without reducing.
  void drop_gradients();
  // After a failed backward: what only this pass has captured is thrown away. If gradients of other
  // passes or finished reductions are left, they cannot be told apart any more: every use of them
  // throws until zero_grad.
  void abandon_gradients();

  // The optimizer's view; segments with trainable parameters only.
  std::vector<MainSegment> main_segments();
  bool has_main_gradient() const { return !main_gradients_.empty(); }
  void zero_grad();
  // Per-parameter views of main shard and gradient, for torch::optim and for loading; empty ones
  // too. While anybody else holds one of them, gradients are handed out and taken back through
  // `.grad` as well.
  const std::vector<at::Tensor>& local_views();
  const Interval& local_interval(int parameter) const { return local_[parameter]; }

  // Whole fp32 values of the main shards, gathered into `whole` (layout().segments() order,
  // padded).
  void gather_main(std::vector<Buffer>& whole);

  // Parameters written since they were seated, or given other storage, go back into the main
  // shards: each rank's own slice of what it has seated, or of rank 0's values (collective; always
  // where parameters are replicated). Requires: kUnsharded.
  void write_back(bool from_rank_zero);
  // FQN of the first parameter that was written since it was seated, or given other storage; empty
  // if none was. What is written while parameters are seated is lost, but for write_back and where
  // main shards themselves are seated (`loses_writes`).
  std::string first_written();
  bool loses_writes() const;
  // Where main shards are seated: what was written is the parameters' value now, as in plain
  // LibTorch, and no change for a graph that was made after it.
  void keep_writes();

  // Change of the main shards since the last call, by version counters: bumps parameters' versions
  // and refreshes the resident copy. At a forward (`reseats`) seated parameters are given back, so
  // that they are gathered anew: alike on all ranks, whatever each rank's shard looks like, hence
  // also where nothing is known of a change but somebody may have made one.
  void absorb_changes(bool reseats);
  // Whoever wrote the main shards through raw pointers says so; `copies_written`: with resident
  // copies.
  void mark_changed(bool copies_written);

  // A parameter that was frozen when the engine was built is to be trained: from now on its segment
  // has gradients. Requires: no gradients on their way. Errors: StateError.
  void unfreeze(int parameter);
  // [Note: guarded gradients] in parameter_seats.h.
  void guard_gradients() { seats_.guard_gradients(); }
  // Why an access to a parameter throws from now on.
  void set_reason(std::string_view reason, std::string_view hint) {
    seats_.set_reason(reason, hint);
  }

 private:
  struct Segment;
  // [Note: lent gradients] in gradient_places.h. The stream that reduces it holds it, too: the unit
  // may have the next one before this one is reduced.
  struct LentGradient {
    at::Tensor gradient;  // elements in the parameter's memory order; nobody else's
    at::Tensor reduced;   // this rank's slice, where it cannot land in the main gradient
    std::array<SendRun, 3> runs;
  };
  // Errors: StateError naming both states if the unit is in another one.
  void require(ParameterState expected, std::string_view transition) const;
  void map_ranks();
  void gather_into(Slot* slot);
  void seat();
  void check_seats() const;
  std::optional<int> take_stray_write();
  CollectiveTag next_tag(Operation operation, int64_t numel) const;
  void zero_gaps();
  void zero_missing();
  bool narrows() const { return lanes_.reduce_dtype != DType::kFloat32; }
  const GradientPlaces& places() const { return wide_ ? wide_places_ : places_; }
  DType whole_dtype() const { return wide_ ? DType::kFloat32 : lanes_.reduce_dtype; }
  void make_places();
  void take_reduce_slot();
  void narrow_gradients();
  std::byte* gradient_place(int segment, int64_t element) const;
  void add_gradient(const at::Tensor& gradient, DType dtype, int parameter, std::byte* place);
  bool lend(int parameter, const at::Tensor& gradient, DType dtype);
  CollectivePart reduction_of(int segment, std::byte* landing);
  void give_gradients_back(CpuStream& stream);
  void broadcast_changed(std::vector<uint8_t>& changed);
  void take_main_gradients(Stream& stream);
  void adopt_user_gradients();
  void attach_gradient_views();
  at::Tensor main_gradient_view(int parameter) const;
  void forget_unused_views();
  void check_not_spoiled() const;
  void poison(const Slot* slot, bool gradients, Stream& stream);
  void refresh_resident_copies();

  std::string fqn_;
  Lanes& lanes_;
  ShardLayout layout_;
  GradientPlaces places_;
  GradientPlaces wide_places_;  // of gradients kept in fp32 where they are reduced in a lower type
  ParameterSeats seats_;
  std::vector<std::unique_ptr<Segment>> segments_;
  bool mapped_ = false;
  ParameterState state_ = ParameterState::kSharded;
  GradientState gradient_state_ = GradientState::kNone;
  Slot* parameter_slot_ = nullptr;
  Slot* reduce_slot_ = nullptr;
  std::vector<std::shared_ptr<LentGradient>> lent_;  // one a segment; null: none has come
  int64_t kept_lent_bytes_ = 0;                      // counted in the ledger
  std::vector<Slot*> main_gradients_;  // one a segment, null for frozen; empty without a gradient
  bool straight_ = false;              // while capturing: into the main gradient, not into a slot
  bool wide_ = false;                  // whole gradients lie at wide_places_
  bool adds_to_earlier_ = false;       // while capturing: earlier passes' gradients are in it too
  bool spoiled_ = false;               // by a failed backward, until zero_grad
  Event gathered_;
  Event captured_;
  std::vector<char> arrived_;
  std::vector<Interval> local_;
  std::vector<std::byte*> places_of_segments_;  // while seated: where each lies whole
  std::vector<at::Tensor> local_views_;
};

}  // namespace fsdp
